"""The conversations that labels were made from: a file in any dialect that data.path may have."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..chat.conversation import BadRow, Conversation
from ..config.errors import UserError
from ..reading.dialects import Dialect, RowParser
from ..reading.formats import open_rows, position
from ..reading.sources import CODECS, FORMATS, format_of

KINDS = f"{', '.join(FORMATS)}; all but Parquet also with {' or '.join(CODECS)} behind it"


@dataclass
class Source:
    """The conversations of a file, in their order, and the rows of it that are none."""

    path: Path
    conversations: list[Conversation] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_source(path: Path, dialect: Dialect | Literal["auto"]) -> Source:
    """All conversations of a file.

    Raises UserError for what is no file of a known kind, and for one without a conversation.
    """
    if not path.exists():
        raise UserError(f"{path} (--source) does not exist")
    if path.is_dir():
        raise UserError(f"{path} (--source) is a directory; name one file with the conversations")
    if not path.is_file():
        raise UserError(f"{path} (--source) is no regular file; write its content to one")
    if not format_of(path):
        raise UserError(f"{path} (--source) is of a kind that cannot be read; use {KINDS}")
    source, parser = Source(path), RowParser(dialect)
    with closing(open_rows(path)) as reader:
        for row in reader.rows():
            where = position(path.name, row.number, reader.unit)
            try:
                source.conversations.append(parser.parse(row.value, where))
            except BadRow as reason:
                source.unreadable.append(f"{where}: {reason}")
    if not source.conversations:
        raise UserError(f"{path} (--source) holds no conversation: {source.unreadable[0]}")
    return source
