"""The strings that templates look for."""

import pytest

from stages.chat.inspected import inspected_constants


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ messages[0].content }}", ()),
        ("{% if '</think>' in m.content %}x{% endif %}", ("</think>",)),
        ("{% if '</think>' not in m.content %}x{% endif %}", ("</think>",)),
        ("{{ m.content.split('</think>')[-1].lstrip('\\n') }}", ("</think>",)),
        ("{% if m.content.startswith('<tool_response>') %}x{% endif %}", ("<tool_response>",)),
        ("{% if 'tool_calls' in message %}x{% endif %}", ()),
        ("{% if m.role == '</think>' %}x{% endif %}", ()),
        ("{% if m.role in ['<user>', '<tool>'] %}x{% endif %}", ()),
        ("{% generation %}{{ m.content.replace('[A]', '') }}{% endgeneration %}", ("[A]",)),
        ("{% for m in messages %}{% if m %}{% break %}{% endif %}{% endfor %}", ()),
    ],
)
def test_constants_that_are_searched_for(template: str, found: tuple[str, ...]) -> None:
    assert inspected_constants(template) == found
