"""What a server far away is asked, through fsspec: what there is, how large it is, and ranges of its bytes.

Every answer is checked against what the object was when it was opened; a request that fails is made again, later each
time, at most `attempts()` times in all. fsspec is imported when the first such address is met.
"""
from __future__ import annotations

import functools
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .sources import SourceError

SCHEMES = ("s3", "gs", "http", "https", "hf")
ATTEMPTS, SLOWEST = "PIPEC_REMOTE_ATTEMPTS", 10.0   # seconds between two attempts
QUIET, LONGEST = 30.0, 300.0                        # seconds without a byte, and of one request, before it counts as failed
A = TypeVar("A")
T = TypeVar("T")


class Changed(Exception):
    """The object isn't what it was when it was opened."""


class NoRanges(Exception):
    """The server gives whole objects only."""


@dataclass(frozen=True)
class About:
    """An object: its size in bytes (None: the server doesn't say), and what changes when its content does ("": nothing)."""

    size: int | None
    tag: str
    ranges: bool = True


def is_remote(path: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def shown(url: str) -> str:
    """An address for messages: without passwords, queries and fragments."""
    return re.sub(r"(?<=://)[^/@]*@", "", url.partition("?")[0].partition("#")[0])


def attempts() -> int:
    text = os.environ.get(ATTEMPTS, "8")
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise SourceError("E0812", f"{ATTEMPTS} is `{text[:20]}`: it is a number from 1 to 1000")
    return int(text)


@functools.lru_cache(maxsize=64)
def _filesystem(scheme: str, process: int) -> Any:
    try:
        import fsspec
    except ImportError:
        raise SourceError("E0810", "files at addresses are read with the package fsspec, which isn't installed",
                          ("pip install 'pipec[remote]'",)) from None
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme in ("http", "https"):
        options["client_kwargs"] = {"trust_env": True}
    elif scheme == "s3":
        options["config_kwargs"] = {"connect_timeout": QUIET, "read_timeout": QUIET, "retries": {"max_attempts": 1}}
    try:
        return fsspec.filesystem(scheme, **options)
    except (ImportError, ValueError) as error:
        raise SourceError("E0810", f"`{scheme}://` can't be read: {str(error)[:120]}", ("pip install 'pipec[remote]'",)) from None


def filesystem(url: str) -> Any:
    """fsspec's file system for an address, one for each process. Raises SourceError."""
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES or "::" in url:
        raise SourceError("E0810", f"`{shown(url)}` is an address of a kind that isn't read",
                          (f"these are: {', '.join(s + '://' for s in SCHEMES)}; a file on this machine is named by its path",))
    return _filesystem(scheme, os.getpid())


# --- trying again -----------------------------------------------------------------------------------------------------


def persistent(url: str, what: str, work: Callable[[], T]) -> T:
    """What `work` gives; tried again after failures that may pass. Raises SourceError E0810, E0812."""
    begun, most = time.monotonic(), attempts()
    for attempt in range(1, most + 1):
        try:
            return work()
        except (SourceError, NoRanges):
            raise
        except Changed as error:
            raise _changed(url, error) from None
        except Exception as error:   # file systems raise anything
            final = _final(url, error)
            if final is None and attempt == most:
                final = _given_up(url, what, error, most, time.monotonic() - begun)
            if final is not None:
                raise final from None
        time.sleep(min(SLOWEST, 0.1 * 2 ** (attempt - 1)) * (0.5 + random.random()))
    raise AssertionError


def _changed(url: str, error: Changed) -> SourceError:
    return SourceError("E0812", f"`{shown(url)}` has changed while it was read", (
        str(error), "records already delivered are of the earlier one: begin again, and give new data a new name"))


def _given_up(url: str, what: str, error: Exception, tries: int, seconds: float) -> SourceError:
    return SourceError("E0812", f"`{shown(url)}` can't be read: {_reason(error)}", (
        f"{tries} attempt{'s' if tries != 1 else ''} to {what} in {seconds:.1f} s failed; {ATTEMPTS}=… allows more",
        "nothing is left out because of it: once the server can be reached, a run goes on at its place"))


def _cause(error: BaseException) -> BaseException:
    """What a file system takes for "not found"."""
    return error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error


def _status(error: BaseException) -> int:
    """The HTTP status that an error stands for, 0 if none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):   # botocore's
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for holder, name in ((response, "status_code"), (error, "status"), (error, "code")):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 400 <= found < 600:
            return found
    return 0


def _reason(error: BaseException) -> str:
    inner = _cause(error)
    said = (str(inner).strip().splitlines() or [type(inner).__name__])[0][:160]
    if isinstance(inner, TimeoutError) or type(inner).__name__ == "FSTimeoutError":
        return "the server is silent"
    return f"the server answers {_status(inner)} {getattr(inner, 'message', said)}".strip() if _status(inner) else said


def _final(url: str, error: Exception) -> SourceError | None:
    """The error that no further attempt would mend."""
    inner = _cause(error)
    status = _status(inner)
    if status in (404, 410) or isinstance(inner, FileNotFoundError):
        return SourceError("E0810", f"there is no file `{shown(url)}`", (f"the server says so: {_reason(error)}",))
    if status in (401, 403) or isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError":
        return SourceError("E0812", f"`{shown(url)}` may not be read: {_reason(error)}", (
            "credentials are taken from where the service's own tools look for them (AWS_PROFILE, HF_TOKEN, …), and from"
            " fsspec's settings (FSSPEC_S3_ANON=true reads public buckets)",))
    if 400 <= status < 500 and status not in (408, 412, 416, 425, 429):
        return SourceError("E0812", f"`{shown(url)}` can't be read: {_reason(error)}")
    return None


# --- questions --------------------------------------------------------------------------------------------------------

TAGS = ("ETag", "etag", "Content-MD5", "Digest", "md5Hash", "generation", "blob_id", "VersionId", "Last-Modified", "LastModified",
        "mtime", "updated")


def about(url: str) -> About:
    """Size and tag of an object. Raises SourceError."""
    fs = filesystem(url)
    info = persistent(url, "ask for its size", lambda: fs.info(url))
    if info.get("type") == "directory":
        raise SourceError("E0810", f"`{shown(url)}` is a folder, not a file", ("`*` matches the files in it",))
    return _about(info)


def _about(info: Any) -> About:
    tag = next((f"{name}={info[name]}" for name in TAGS if info.get(name)), "")
    size = info.get("size")
    return About(None if size is None else int(size), tag, info.get("partial") is not False)


def matched(url: str) -> list[str]:
    """The addresses that a pattern matches, in bytewise order. Raises SourceError."""
    fs = filesystem(url)
    scheme = url.partition("://")[0]
    found = persistent(url, "list what it matches", lambda: fs.glob(url))
    listed = [f if is_remote(f) else f"{scheme}://{f}" for f in found]
    if "/." not in url:   # as on this machine, hidden files must be asked for
        fixed = len(re.split(r"[*?\[]", url)[0].rpartition("/")[0])
        listed = [f for f in listed if "/." not in f[fixed:]]
    return sorted(listed, key=os.fsencode)


def listed(url: str) -> list[str]:
    """All files below a folder, in bytewise order. Raises SourceError."""
    fs = filesystem(url)
    scheme = url.partition("://")[0]
    found = persistent(url, "list what is below it", lambda: fs.find(url.rstrip("/") + "/"))
    return sorted((f if is_remote(f) else f"{scheme}://{f}" for f in found), key=os.fsencode)


def has_magic(url: str) -> bool:
    """Is it a pattern: `?` begins the query of an address on the web."""
    return any(c in url for c in ("*", "[") + (() if url.startswith("http") else ("?",)))


def bytes_of(url: str, start: int, end: int, known: About) -> bytes:
    """Bytes `start` to `end` of an object that is still what is `known` of it. Raises SourceError, NoRanges."""
    fs = filesystem(url)
    scheme = url.partition("://")[0].lower()
    ask = _web if scheme in ("http", "https") else _bucket if scheme == "s3" else _any

    def once() -> bytes:
        data = ask(fs, url, start, end, known)
        if len(data) != end - start:
            raise OSError(f"it sent {len(data):,} bytes where {end - start:,} were asked for")
        return data

    return persistent(url, f"read bytes {start:,} to {end:,}", once)


def _any(fs: Any, url: str, start: int, end: int, known: About) -> bytes:
    data: bytes = fs.cat_file(url, start=start, end=end)
    _same(_about(fs.info(url)), known)
    return data


def _same(found: About, known: About) -> None:
    if found.tag != known.tag or found.size != known.size:
        raise Changed(f"it was {known.size:,} bytes, {known.tag}; it is {found.size:,} bytes, {found.tag}")


def _bucket(fs: Any, url: str, start: int, end: int, known: About) -> bytes:
    from fsspec.asyn import sync

    bucket, key, version = fs.split_path(url)
    more = {"VersionId": version} if version else {}
    tag = known.tag.partition("=")[2] if known.tag.startswith("ETag") else ""

    async def ask() -> bytes:
        found = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **more)
        if tag and found.get("ETag") != tag:
            raise Changed(f"it was {known.tag}, it is ETag={found.get('ETag')}")
        if found.get("ContentLength", 0) > end - start:
            raise NoRanges
        async with found["Body"] as body:
            data: bytes = await body.read()
        return data

    result: bytes = sync(fs.loop, ask, timeout=LONGEST)
    return result


def _web(fs: Any, url: str, start: int, end: int, known: About) -> bytes:
    from fsspec.asyn import sync

    async def ask() -> bytes:
        session = await fs.set_session()
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        async with session.get(fs.encode_url(url), headers=headers, timeout=_timeout()) as reply:
            if reply.status == 416:
                raise Changed(f"it was {known.size:,} bytes; there are fewer now, or its size was given wrong")
            reply.raise_for_status()
            if reply.status != 206:
                raise NoRanges
            _check_reply(reply.headers, start, known)
            pieces, left = [], end - start
            while left >= 0 and (piece := await reply.content.readany()):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)

    result: bytes = sync(fs.loop, ask, timeout=LONGEST + QUIET)
    return result


def _timeout() -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=LONGEST, sock_connect=QUIET, sock_read=QUIET)


def _check_reply(headers: Any, start: int, known: About) -> None:
    """A range of the object that was opened, from the byte that was asked for."""
    name, _, value = known.tag.partition("=")
    if name in headers and headers[name] != value:
        raise Changed(f"it was {known.tag}, it is {name}={headers[name]}")
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise OSError("it sent another range than was asked for")
    if match[2] != "*" and int(match[2]) != known.size:
        raise Changed(f"it was {known.size:,} bytes, it is {int(match[2]):,}")


def all_of(url: str, known: About, write: Callable[[bytes], None]) -> None:
    """Give a whole object, piece by piece, from a server that gives no ranges. Raises SourceError."""
    fs = filesystem(url)
    done = 0

    def once() -> None:
        nonlocal done
        seen = 0
        with fs.open(url, "rb", block_size=0) as stream:
            while piece := stream.read(1 << 20):
                if seen + len(piece) > done:   # what an earlier attempt gave isn't given again
                    write(piece[max(0, done - seen):])
                    done = seen + len(piece)
                seen += len(piece)
        if known.size is not None and seen != known.size:
            raise OSError(f"it sent {seen:,} bytes of {known.size:,}")
        _same(About(known.size, _about(fs.info(url)).tag), known)

    persistent(url, "read all of it", once)


def every(items: Sequence[A], work: Callable[[A], T]) -> list[T]:
    """`work` of each, some at once, in their order."""
    from concurrent.futures import ThreadPoolExecutor

    if len(items) < 2:
        return [work(i) for i in items]
    with ThreadPoolExecutor(min(16, len(items)), "pipec-remote") as pool:
        return list(pool.map(work, items))
