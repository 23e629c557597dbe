"""Names the weights that an engine serves, by their content or by their commit. Depends on no engine.

A store keeps KV under the name of the weights that computed it. The name of a folder is a digest of its
files' bytes. Sizes and times are not sufficient, because disk images, ``cp -p`` and rsync preserve
them. The name of a model on the Hugging Face hub is the commit that is served.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib
import json
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["REMEMBERED", "commit_of", "content_of", "stamp_of", "weights_of"]

#: The environment variable with the path of the file in which digests of large files are cached. The
#: default is kvpool/content.json in the user's cache folder.
REMEMBERED: Final = "KVPOOL_CONTENT_CACHE"

#: Names of files that ``content_of`` skips, with the reason why no engine computes KV from them.
_IGNORED: Final = {
    ".git": "history of the folder, which git rewrites when it fetches",
    ".gitattributes": "settings of git",
    ".gitignore": "settings of git",
    ".cache": "huggingface_hub writes times of its downloads here",
    "*.md": "text for people",
    "LICENSE*": "text for people",
    "NOTICE*": "text for people",
}

#: Smaller files are read again at every start. The unit is bytes.
_SMALL: Final = 1 << 20
#: A digest is cached only if the file was last changed at least this number of nanoseconds before it
#: was read. The file system's clock has ticks, and two changes within one tick have the same times.
_SETTLED: Final = 2_000_000_000
#: The largest number of digests that are cached. The oldest are dropped.
_MAX_ENTRIES: Final = 10_000
_THREADS: Final = min(8, os.cpu_count() or 1)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")


def weights_of(
    model: str, revision: str | None = None, *, cache_dir: str | os.PathLike[str] | None = None
) -> str:
    """Returns a name for the weights of a model or of an adapter. Different bytes have different names.

    Args:
        model: A folder, a file, or a name on the Hugging Face hub.
        revision: The commit, branch or tag that the engine serves. The default is ``main``. Not used
            for a folder.
        cache_dir: The folder into which the engine downloads models. The default is the cache of
            huggingface_hub.

    Returns:
        ``content`` and a digest, or ``commit`` and a commit.

    Raises:
        InvalidArgumentError: The weights are neither a folder, nor a file, nor a model in the cache; or
            a file cannot be read.
    """
    if model:
        path = Path(model).expanduser()
        if path.exists():
            return content_of(path)
        commit = commit_of(model, revision, cache_dir=cache_dir)
        if commit is not None:
            return f"commit {commit}"
    of = "" if revision is None else f" at revision {revision!r}"
    raise InvalidArgumentError(
        f"weights is not given, and is unknown for {model!r}{of}: it is neither a folder nor in the "
        "Hugging Face cache. Give a commit as the revision, or name the weights yourself, and change the "
        "name whenever the "
        'weights change: "weights": "2026-11-24"'
    )


def commit_of(
    model: str, revision: str | None = None, *, cache_dir: str | os.PathLike[str] | None = None
) -> str | None:
    """Returns the commit of a revision on the hub, or None if it is unknown.

    A revision of 40 hexadecimal digits is a commit already. It is returned unchanged, even if it is not
    in the cache. A branch or a tag is looked up in the cache, which records the commit that this
    machine downloaded. Makes no network call.
    """
    revision = revision or "main"
    if _COMMIT.fullmatch(revision):
        return revision
    if cache_dir is None:
        try:
            cache_dir = importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE
        except ImportError:
            return None
    # This is the layout that huggingface_hub documents. Its function try_to_load_from_cache cannot be
    # used, because it needs the name of a file that was downloaded, and no file is common to all
    # models.
    ref = Path(cache_dir).expanduser() / f"models--{model.replace('/', '--')}" / "refs" / revision
    try:
        commit = ref.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def content_of(path: str | os.PathLike[str]) -> str:
    """Returns a digest of the content of a file, or of all files in a folder.

    The digest covers relative names, sizes and bytes, but no times. Links are followed. The digest is
    SHA-256, computed in up to 8 threads. Digests of files of 1 MiB and more are cached by device,
    inode, size, mtime and ctime, so that the next process does not read an unchanged large file again.

    Raises:
        InvalidArgumentError: The path does not exist, or a file cannot be read.
    """
    root = Path(path).expanduser()
    known = _Remembered()
    try:
        files = list(_files(root))
        with ThreadPoolExecutor(_THREADS) as threads:
            digests = list(
                threads.map(lambda file: known.digest(file[1]) if file[2] == "file" else "", files)
            )
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the weights in {str(root)!r}: {error}") from error
    known.save()
    whole = hashlib.sha256()
    for (name, _, kind), digest in zip(files, digests, strict=True):
        encoded = os.fsencode(name)
        whole.update(b"%d:%s:%s:%s;" % (len(encoded), encoded, kind.encode(), digest.encode()))
    return f"content {whole.hexdigest()}"


def stamp_of(path: str | os.PathLike[str]) -> str:
    """Returns a digest of the names, sizes, inodes and times of the files that ``content_of`` would read.

    Reads no file. If the stamp is unchanged, the content is unchanged. This holds only on the same
    machine, and only if no file was changed twice within one tick of the file system's clock. Do not
    store a stamp, because a copy of the files has another stamp.

    Raises:
        InvalidArgumentError: The path does not exist, or a folder cannot be read.
    """
    root = Path(path).expanduser()
    try:
        facts = [(name, _key(file.stat()) if kind == "file" else kind) for name, file, kind in _files(root)]
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the weights in {str(root)!r}: {error}") from error
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()


def _files(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yields the relative name, the path and the kind of each entry below a folder, ordered by name.

    If ``root`` is a file, yields only that file.
    """
    mode = root.stat().st_mode
    if not stat.S_ISDIR(mode):
        yield "", root, _kind(mode)
        return
    found: list[tuple[str, Path, str]] = []
    _walk(root, "", (), found)
    yield from sorted(found)


def _walk(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...], found: list[tuple[str, Path, str]]
) -> None:
    at = folder.stat()
    if (at.st_dev, at.st_ino) in above:
        found.append((prefix, folder, "loop"))
        return
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _IGNORED):
            continue
        path, relative = folder / name, f"{prefix}{name}"
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            found.append((relative, path, "broken link"))
            continue
        if stat.S_ISDIR(mode):
            _walk(path, f"{relative}/", (*above, (at.st_dev, at.st_ino)), found)
        else:
            found.append((relative, path, _kind(mode)))


def _kind(mode: int) -> str:
    """Returns ``file`` for a regular file, and otherwise the type (device, pipe or socket).

    Only regular files are read, because reading the others could wait forever.
    """
    return "file" if stat.S_ISREG(mode) else f"type {stat.S_IFMT(mode):o}"


def _key(facts: os.stat_result) -> str:
    return f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


class _Remembered:
    """The digests of large files, cached in a file between starts. A damaged cache file counts as empty."""

    def __init__(self) -> None:
        named = os.environ.get(REMEMBERED)
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self._path = Path(named or f"{cache}/kvpool/content.json").expanduser()
        self._known = self._read()
        self._new: dict[str, str] = {}

    def _read(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
                    return {}  # another user could have named other weights
                found = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {
            key: digest for key, digest in found.items() if isinstance(digest, str) and _HEX.fullmatch(digest)
        }

    def digest(self, path: Path) -> str:
        """Returns the SHA-256 of a regular file."""
        before = path.stat()
        known = self._known.get(_key(before))
        if known is not None and _is_exact(before):
            return known
        began = time.time_ns()
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
        settled = began - max(before.st_ctime_ns, before.st_mtime_ns) > _SETTLED
        if before.st_size >= _SMALL and settled and _is_exact(before) and _key(before) == _key(after):
            self._new[_key(before)] = found
        return found

    def save(self) -> None:
        """Adds the new digests to the cache file. Digests that other processes have written meanwhile remain.

        If this fails, the next start only takes longer.
        """
        if not self._new:
            return
        kept = self._read() | self._new
        text = json.dumps(dict(list(kept.items())[-_MAX_ENTRIES:]), indent=0)
        other = self._path.with_name(f"{self._path.name}.{os.getpid()}.{time.time_ns()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with os.fdopen(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(text)
                other.replace(self._path)
            finally:
                other.unlink(missing_ok=True)


def _is_exact(facts: os.stat_result) -> bool:
    """Returns whether the file system stores times with a finer resolution than seconds.

    Only then does every change show in the ctime.

    Images (squashfs, ISO 9660) have whole seconds, which are often constant. Two images may then have
    the same times and inodes.
    """
    return facts.st_ctime_ns % 1_000_000_000 != 0
