"""Conversations about infrastructure incidents, made so that only the prompt gives the answer away.

A user shows a feed of log lines of several services. One line, and one only, is an ERROR or FATAL:
that is the incident, and the others are noise. The assistant names the subsystem (by the service),
the severity (by the symptom) and the action (by both, and by what the policy in force allows). In
some conversations the policy then changes, and the assistant answers again.

No word of a feed decides an answer, because services and symptoms of the noise are drawn like those
of the incident: the word at the incident counts. No filled log line occurs twice.

    python -m stages.demo.incidents [SEED]
"""

import json
import random
import sys
from pathlib import Path

INCIDENTS = Path("data/incidents.jsonl")
SEED = 0
ROWS = 2400
FOLLOW_UP_FRACTION = 0.18
FEED_LINES = 4

SERVICES = {
    "auth": ("vault", "keycloak"),
    "cache": ("redis", "memcached"),
    "compute": ("nomad", "kubelet"),
    "database": ("mysql", "postgres"),
    "dns": ("coredns", "unbound"),
    "gateway": ("nginx", "envoy"),
    "queue": ("kafka", "rabbitmq"),
    "storage": ("ceph", "minio"),
}
MEND = {
    "auth": "rotate",
    "cache": "evict",
    "compute": "drain",
    "database": "failover",
    "dns": "flush",
    "gateway": "reroute",
    "queue": "pause",
    "storage": "throttle",
}
SYMPTOMS = {
    "critical": (
        "crash loop restarts={n}",
        "corrupt blocks count={n}",
        "quorum lost peers={n}",
        "disk full used={n}GB",
    ),
    "major": (
        "backlog growing depth={n}k",
        "packet loss ratio={n}%",
        "timeout rising p99={n}s",
        "retry storm rate={n}k/s",
    ),
    "minor": (
        "clock skew offset={n}ms",
        "cert expiring days={n}",
        "config drift keys={n}",
        "slow scrape took={n}s",
    ),
}
NOISE_LEVELS = ("DEBUG", "INFO", "WARN")
INCIDENT_LEVELS = ("ERROR", "FATAL")
TASKS = (
    "You are the on-call triage bot. JSON only.",
    "You triage alerts and answer in JSON.",
    "Triage the feed. Answer in JSON.",
)
POLICIES = {
    "allowed": ("Policy: changes allowed.", "Changes are allowed."),
    "freeze": ("Policy: change freeze.", "Change freeze is on."),
}

SEVERITY_OF = {symptom: severity for severity, kinds in SYMPTOMS.items() for symptom in kinds}
SUBSYSTEM_OF = {service: subsystem for subsystem, pair in SERVICES.items() for service in pair}

Message = dict[str, str]


def answer(service: str, symptom: str, policy: str) -> str:
    """What the assistant says of an incident, as JSON without spaces."""
    subsystem, severity = SUBSYSTEM_OF[service], SEVERITY_OF[symptom]
    if severity == "minor":
        action = "ticket"
    elif policy == "allowed":
        action = MEND[subsystem]
    else:
        action = "page" if severity == "critical" else "waiver"
    said = {"subsystem": subsystem, "severity": severity, "action": action}
    return json.dumps(said, separators=(",", ":"))


class Feeds:
    """Draws feeds of log lines, no line twice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._written: set[str] = set()

    def draw(self) -> tuple[str, str, str]:
        """(feed, service of its incident, symptom of its incident)."""
        services = self._rng.sample(sorted(SUBSYSTEM_OF), FEED_LINES)
        symptoms = self._rng.sample(sorted(SEVERITY_OF), FEED_LINES)
        incident = self._rng.randrange(FEED_LINES)
        lines = []
        for position, (service, symptom) in enumerate(zip(services, symptoms, strict=True)):
            levels = INCIDENT_LEVELS if position == incident else NOISE_LEVELS
            lines.append(self._line(self._rng.choice(levels), service, symptom))
        return "\n".join(lines), services[incident], symptoms[incident]

    def _line(self, level: str, service: str, symptom: str) -> str:
        while True:
            hour, minute = self._rng.randrange(24), self._rng.randrange(60)
            node, number = self._rng.randrange(10, 100), self._rng.randrange(10, 100)
            line = f"{hour:02}:{minute:02} node{node} {level} {service} {symptom.format(n=number)}"
            if line not in self._written:
                self._written.add(line)
                return line


def make_conversation(rng: random.Random, feeds: Feeds) -> list[Message]:
    feed, service, symptom = feeds.draw()
    policy, other = rng.sample(sorted(POLICIES), 2)
    task, rule = rng.choice(TASKS), rng.choice(POLICIES[policy])
    messages = [
        {"role": "system", "content": f"{task} {rule}"},
        {"role": "user", "content": feed},
        {"role": "assistant", "content": answer(service, symptom, policy)},
    ]
    if rng.random() < FOLLOW_UP_FRACTION:
        messages += [
            {"role": "user", "content": rng.choice(POLICIES[other])},
            {"role": "assistant", "content": answer(service, symptom, other)},
        ]
    return messages


def make_conversations(seed: int = SEED, rows: int = ROWS) -> list[list[Message]]:
    """`rows` conversations; the same for the same seed on every machine."""
    rng = random.Random(seed)
    feeds = Feeds(rng)
    return [make_conversation(rng, feeds) for _ in range(rows)]


def write_incidents(path: Path, seed: int = SEED) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for messages in make_conversations(seed):
            file.write(json.dumps({"messages": messages}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_incidents(INCIDENTS, int(sys.argv[1]) if sys.argv[1:] else SEED)
