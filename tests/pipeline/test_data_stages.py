"""hash_data and mask_report on data that is spread, pinned, repeated, leaked or too long."""

import hashlib
import json
from typing import Any

from ..project import ROWS, Project


def line(prompt: str, answer: str) -> str:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


def checks(project: Project, gate: str) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in project.json(f"gates/{gate}.json")["checks"]}


def hash_data(project: Project) -> dict[str, Any]:
    done = project.stage("hash_data")
    assert done.returncode == 0, done.stdout
    numbers: dict[str, Any] = project.json("metrics/hash_data.json")["hash_data"]
    return numbers


def spread(project: Project, *names: str) -> None:
    """Spread the rows of incidents.jsonl over files in data/parts."""
    rows = project.read("data/incidents.jsonl").splitlines(keepends=True)
    for number, name in enumerate(names):
        project.write(f"data/parts/{name}", "".join(rows[number :: len(names)]))
    project.set_params(data__path="data/parts")


def test_the_digest_of_several_files_is_blind_to_names_and_order(fresh: Project) -> None:
    spread(fresh, "a.jsonl", "b.jsonl", "c.jsonl")
    assert hash_data(fresh)["rows"] == ROWS
    value = checks(fresh, "hash_data")["data_sha256"]["value"]
    digests = sorted(
        hashlib.sha256((fresh.path / f"data/parts/{name}.jsonl").read_bytes()).hexdigest()
        for name in "abc"
    )
    assert value == hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()
    (fresh.path / "data/parts/a.jsonl").rename(fresh.path / "data/parts/z.jsonl")
    hash_data(fresh)
    assert checks(fresh, "hash_data")["data_sha256"]["value"] == value


def test_several_files_give_the_rows_and_the_splits_of_one(fresh: Project) -> None:
    def prompts(split: str) -> set[str]:
        lines = fresh.read(f"artifacts/dataset/{split}.jsonl").splitlines()
        return {json.loads(row)["id"] for row in lines}

    hash_data(fresh)
    one = [prompts(split) for split in ("train", "validation")]
    spread(fresh, "a.jsonl", "b.jsonl")
    hash_data(fresh)
    assert [prompts(split) for split in ("train", "validation")] == one
    sources = {
        json.loads(row)["source"]
        for row in fresh.read("artifacts/dataset/train.jsonl").splitlines()
    }
    assert "data/parts/b.jsonl:1" in sources or "data/parts/b.jsonl:2" in sources
    assert not list(fresh.path.glob("artifacts/dataset/shard*"))


def test_a_row_keeps_its_split_when_others_are_added(fresh: Project) -> None:
    hash_data(fresh)
    before = set(fresh.read("artifacts/dataset/validation.jsonl").splitlines())
    rows = fresh.read("data/incidents.jsonl")
    fresh.write("data/incidents.jsonl", rows + "".join(line(f"p{n}", "a") for n in range(50)))
    hash_data(fresh)
    assert before < set(fresh.read("artifacts/dataset/validation.jsonl").splitlines())


def test_pinned_data_passes_and_other_data_fails(fresh: Project) -> None:
    digest = hashlib.sha256((fresh.path / "data/incidents.jsonl").read_bytes()).hexdigest()
    fresh.set_params(data__sha256=digest)
    hash_data(fresh)
    assert checks(fresh, "hash_data")["data_sha256"]["status"] == "pass"
    fresh.set_params(data__sha256="0" * 64)
    hash_data(fresh)
    check = checks(fresh, "hash_data")["data_sha256"]
    assert (check["status"], check["value"]) == ("fail", digest)


def test_repeats_contradictions_and_empty_answers_are_named(fresh: Project) -> None:
    rows = fresh.read("data/incidents.jsonl").splitlines(keepends=True)
    contradiction = json.loads(rows[1])
    contradiction["messages"][2]["content"] = "something else"
    extra = [rows[0], json.dumps(contradiction) + "\n", line("p", "")]
    fresh.write("data/incidents.jsonl", "".join(rows + extra))
    numbers = hash_data(fresh)
    assert (numbers["duplicates"], numbers["conflicting_answers"]) == (1, 1)
    listed = fresh.read("reports/hash_data/findings.csv").splitlines()[1:]
    assert listed == [
        f"empty_answer,data/incidents.jsonl:{ROWS + 3},an assistant turn says nothing",
        f"duplicate,data/incidents.jsonl:{ROWS + 1},data/incidents.jsonl:1",
        f"conflicting_answer,data/incidents.jsonl:{ROWS + 2},data/incidents.jsonl:2",
    ]
    assert checks(fresh, "hash_data")["empty_answers"]["status"] == "fail"


def test_a_leak_into_validation_fails(fresh: Project) -> None:
    rows = fresh.read("data/incidents.jsonl").splitlines(keepends=True)
    fresh.write("data/held_out.jsonl", "".join(rows[:3]) + line("p", "a") * 4)
    fresh.set_params(data__validation_path="data/held_out.jsonl")
    numbers = hash_data(fresh)
    assert (numbers["train_rows"], numbers["validation_rows"]) == (ROWS, 7)
    check = checks(fresh, "hash_data")["split_overlap"]
    assert (check["status"], check["value"]) == ("fail", 3)
    assert check["evidence"][0] == "data/held_out.jsonl:1 has the prompt of data/incidents.jsonl:1"


TEXT_CHECKS = (
    "near_duplicate_fraction",
    "ngram_leakage",
    "placeholder_fraction",
    "broken_off_fraction",
    "damaged_fraction",
    "script_outlier_fraction",
)


def test_texts_that_resemble_each_other_but_are_sound_pass(fresh: Project) -> None:
    hash_data(fresh)
    found = checks(fresh, "hash_data")
    assert [(found[name]["status"], found[name]["value"]) for name in TEXT_CHECKS] == [
        ("pass", 0)
    ] * len(TEXT_CHECKS)
    assert found["near_duplicate_fraction"]["message"].endswith(
        f"0 rows; {ROWS} of {ROWS} rows were compared"
    )


def test_a_faulty_text_of_each_kind_is_named(fresh: Project) -> None:
    rows = fresh.read("data/incidents.jsonl").splitlines(keepends=True)
    text = " ".join(f"w{number}" for number in range(50))
    faulty = [
        line(f"{text} one", "yes"),
        line(f"{text} two", "yes"),
        line("Hi, I am [User's Name].", "Hello."),
        line("Why?", "It was late. It was dark. And then the"),
        line("Where?", "In the cafÃ© there."),
        line("Who?", "Никто."),
        line("What?", "Ничего."),
    ]
    fresh.write("data/incidents.jsonl", "".join(rows + faulty))
    fresh.write("data/held_out.jsonl", line(f"{text} three", "Yes!") + line("p", "a") * 4)
    fresh.set_params(data__validation_path="data/held_out.jsonl")
    hash_data(fresh)
    assert fresh.read("reports/hash_data/findings.csv").splitlines()[-8:] == [
        "near_duplicate,data/incidents.jsonl:242,data/incidents.jsonl:241",
        "near_duplicate,data/held_out.jsonl:1,data/incidents.jsonl:241",
        'ngram_leak,data/held_out.jsonl:1,"95% of its wording is in training, most of it in '
        'data/incidents.jsonl:241"',
        "placeholder,data/incidents.jsonl:243,[User's Name] in the user turn",
        "broken_off_answer,data/incidents.jsonl:244,"
        "ends in mid-sentence: It was late. It was dark. And then the",
        "damaged_text,data/incidents.jsonl:245,the assistant turn holds 'Ã© t' (decoded from "
        "another encoding)",
        "script_outlier,data/incidents.jsonl:246,answers in Cyrillic letters",
        "script_outlier,data/incidents.jsonl:247,answers in Cyrillic letters",
    ]
    found = checks(fresh, "hash_data")
    assert (found["ngram_leakage"]["status"], found["ngram_leakage"]["value"]) == ("fail", 1)
    assert [found[name]["status"] for name in TEXT_CHECKS[2:]] == ["warn", "pass", "warn", "warn"]
    assert found["near_duplicate_fraction"]["value"] == 2 / (ROWS + 12)


def mask_report(project: Project) -> str:
    hash_data(project)
    done = project.stage("mask_report")
    assert done.returncode == 0, done.stdout
    return done.stdout


def rows_by_status(project: Project) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in project.read("reports/mask_report/rows.csv").splitlines()[1:]:
        status = row.split(",")[2]
        counts[status] = counts.get(status, 0) + 1
    return counts


def test_rows_that_are_too_long_are_dropped_counted_and_named(fresh: Project) -> None:
    fresh.set_params(data__max_length=110)
    mask_report(fresh)
    status = rows_by_status(fresh)
    assert sum(status.values()) == ROWS
    assert status["dropped: too_long"] > 0
    numbers = fresh.json("metrics/mask_report.json")["mask_report"]
    assert (numbers["loaded"], numbers["kept"]) == (ROWS, status["kept"])
    check = checks(fresh, "mask_report")["dropped_fraction"]
    assert check["value"] == status["dropped: too_long"] / ROWS
    assert check["status"] == "fail"


def test_rows_that_are_cut_lose_their_stop_token_and_that_fails(fresh: Project) -> None:
    fresh.set_params(data__max_length=110, data__truncation="keep_start")
    mask_report(fresh)
    status = rows_by_status(fresh)
    assert status["cut"] > 0
    found = checks(fresh, "mask_report")
    assert found["truncated_fraction"]["status"] == "fail"
    assert found["content_masked"]["status"] == "pass"
    assert found["prompt_supervised"]["status"] == "pass"


def test_batch_0_is_printed_token_by_token(fresh: Project) -> None:
    output = mask_report(fresh)
    assert output.count("Batch 0, row ") == 1
    assert 'Token: "<|im_start|>" -> Label: -100 (Masked)' in output
    assert 'Token: "<|im_end|>" -> Label: 2 (SUPERVISED)' in output
    supervised = [row for row in output.splitlines() if row.endswith("(SUPERVISED)")]
    said = "".join(json.loads(row.split("Token: ")[1].split(" -> ")[0]) for row in supervised)
    assert json.loads(said.split("<|im_end|>")[0]).keys() == {"subsystem", "severity", "action"}


def test_the_tokens_are_the_same_on_another_day(fresh: Project) -> None:
    template = "data/tokenizer/chat_template.jinja"
    dated = "{{ '<|im_start|>system\\n' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}"
    fresh.write(template, dated + fresh.read(template))
    mask_report(fresh)
    first = (fresh.path / "artifacts/tokens/train.arrow").read_bytes()
    fresh.set_params(labels__template_date="2027-02-03")
    mask_report(fresh)
    assert (fresh.path / "artifacts/tokens/train.arrow").read_bytes() != first
    fresh.set_params(labels__template_date="2026-01-01")
    mask_report(fresh)
    assert (fresh.path / "artifacts/tokens/train.arrow").read_bytes() == first
