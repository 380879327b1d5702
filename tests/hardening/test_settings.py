"""params.yaml, dvc.yaml, conf/ and overrides from outside: a sentence with the key, or a run."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..project import Project
from .damage import flips, truncations
from .outcome import assert_refused, holdshort, inside, stage

PARAMS: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null\n",
    "a list": b"- a\n",
    "a number": b"5\n",
    "a word": b"word\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "a tab": b"a:\n\tb: 1\n",
    "UTF-16": "data: {}\n".encode("utf-16"),
    "latin-1": b"data: \xff\n",
    "NUL": b"data: \0\n",
    "a quote without end": b'data: "\n',
    "a bracket without end": b"data: [\n",
    "brackets without end": b"data: " + b"[" * 100_000 + b"\n",
    "maps in maps": b"data: " + b"{a: " * 900 + b"1" + b"}" * 900 + b"\n",
    "two megabytes": b"data: " + b"a" * 2_000_000 + b"\n",
    "an alias of nothing": b"data: *nothing\n",
    "an alias inside of itself": b"data: &a [*a]\n",
    "aliases that grow": b"a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (97 + n, 97 + n, b", ".join([b"*%c" % (96 + n)] * 10))
        for n in range(1, 5)
    ),
    "a tag of Python": b"data: !!python/object/apply:os.system ['touch pwned']\n",
    "a tag of our own": b"data: !evil 1\n",
    "a key that is a list": b"? [a, b]\n: 1\n",
    "a key that is null": b"null: 1\n",
    "a key twice": b"data: 1\ndata: 2\n",
    "a number of 5000 digits": b"data: " + b"9" * 5000 + b"\n",
    "a merge of nothing": b"data:\n  <<: 5\n",
    "a binary": b"data: !!binary '////'\n",
    "an interpolation": b"data: ${oc.env:HOME}\n",
}

VALUES: dict[str, tuple[str, object]] = {
    "a batch of NaN": ("train__learning_rate", float("nan")),
    "an infinite rate": ("train__learning_rate", float("inf")),
    "a rate that is a list": ("train__learning_rate", [1]),
    "a rate that is null": ("train__learning_rate", None),
    "a seed below 0": ("run__seed", -1),
    "a seed of 33 bits": ("run__seed", 2**33),
    "a seed of 5000 digits": ("run__seed", 10**300),
    "steps that are true": ("train__max_steps", True),
    "threads of 0": ("run__cpu_threads", 0),
    "a path of NUL": ("data__path", "a\0b"),
    "a path of 5000 characters": ("data__path", "data/" + "a" * 5000),
    "a path that is a list": ("data__path", ["data"]),
    "an empty path": ("data__path", ""),
    "a digest that is none": ("data__sha256", "abc"),
    "a date that is none": ("labels__template_date", "2026-02-30"),
    "a policy of nothing": ("labels__supervise", []),
    "a policy of nonsense": ("labels__supervise", ["everything"]),
    "a group that is a word": ("train", "fast"),
    "a group that is a list": ("gates__mask", []),
    "a model that is null": ("model", None),
    "a model of no name": ("model", {"name": ["tiny_gpt"]}),
    "a key that paints the terminal": ("train__\x1b[31mred", 1),
    "a missing value": ("run__seed", "???"),
}

PIPELINES: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"- stages\n",
    "stages that are a list": b"stages: [hash_data]\n",
    "a stage that is a list": b"stages:\n  hash_data: []\n",
    "a stage that is null": b"stages:\n  hash_data:\n",
    "deps that are a number": b"stages:\n  hash_data:\n    deps: 5\n",
    "deps of numbers": b"stages:\n  hash_data:\n    deps: [5]\n",
    "params of maps": b"stages:\n  hash_data:\n    deps: [data]\n    params: [{a: [b]}]\n",
    "params that are missing": b"stages:\n  hash_data:\n    deps: [data]\n",
    "a param that is unknown": b"stages:\n  hash_data:\n    deps: [data]\n    params: [zzz]\n",
}

OVERRIDES = {
    "no value": "train.learning_rate=",
    "no key": "=5",
    "an unknown key": "train.learnin_rate=1",
    "an unknown group": "nothing=here",
    "an unknown choice": "model=nothing",
    "a bracket": "train.learning_rate=[",
    "an index": "train.frozen[0]=1",
    "a sweep": "train.learning_rate=1,2",
    "a word for a number": "train.learning_rate=fast",
    "a missing value": "train.learning_rate=???",
    "an interpolation of nothing": "train.learning_rate=${nothing}",
    "a resolver of nothing": "train.learning_rate=${evil:1}",
    "a path upwards": "model=../../../etc/passwd",
    "a quote": "data.path='",
    "NUL": "data.path=a\0b",
    "an escape": "data.path=\x1b[31m",
    "a thousand brackets": "train.learning_rate=" + "[" * 1000,
    "a deletion": "~train.learning_rate",
    "hydra itself": "hydra.run.dir=/tmp/x",
}


@pytest.fixture(scope="module")
def project(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return fresh_template.copy(tmp_path_factory.mktemp("settings") / "project")


@pytest.fixture
def whole(project: Project) -> Project:
    """The project with its own settings, whatever the test before it left."""
    project.git("checkout", "--quiet", "--", "params.yaml", "dvc.yaml", "conf")
    return project


@pytest.mark.parametrize("name", PARAMS)
def test_params_that_are_none_are_refused(whole: Project, name: str) -> None:
    (whole.path / "params.yaml").write_bytes(PARAMS[name])
    with inside(whole.path):
        assert_refused(stage("hash_data"), "params.yaml")
        assert_refused(holdshort("budget"), "params.yaml")
    assert not whole.exists("pwned")


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_impossible_is_named(whole: Project, name: str) -> None:
    key, value = VALUES[name]
    whole.set_params(**{key: value})
    with inside(whole.path):
        done = stage("hash_data")
    assert_refused(done, key.replace("__", ".") if key.isprintable() else r"\x1b[31mred")


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_that_is_none_is_named(whole: Project, name: str) -> None:
    (whole.path / "dvc.yaml").write_bytes(PIPELINES[name])
    with inside(whole.path):
        assert_refused(stage("hash_data"), "dvc.yaml")


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_that_cannot_be_composed_is_refused(whole: Project, name: str) -> None:
    before = whole.read("params.yaml")
    with inside(whole.path):
        done = holdshort("compose", OVERRIDES[name])
    if done.code != 0:
        assert_refused(done)
        assert whole.read("params.yaml") == before
    assert not whole.exists("params.yaml.new")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["params.yaml", "dvc.yaml", "conf/config.yaml"])
def test_a_damaged_file_of_settings_is_refused_or_still_valid(whole: Project, file: str) -> None:
    content = (whole.path / file).read_bytes()
    for what, spoiled in (*truncations(content, 3, 4), *flips(content, 3, 16)):
        (whole.path / file).write_bytes(spoiled)
        with inside(whole.path):
            done = holdshort("compose", "--check") if "conf" in file else stage("hash_data")
        if done.code not in (0, 1):
            assert_refused(done)
        assert done.code is not None, what


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_no_params(project: Project, text: str) -> None:
    (project.path / "params.yaml").write_text(text, encoding="utf-8")
    with inside(project.path):
        assert_refused(stage("hash_data"), "params.yaml")
