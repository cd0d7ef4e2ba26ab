"""Names, objects and errors of an object store."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError, RunFailed
from pipeline.storage.object_path import ObjectPath
from pipeline.storage.object_store import DEADLINE
from pipeline.storage.place import place_of, resolved


class TestUrls:
    def test_paths_and_urls(self, tmp_path: Path) -> None:
        place = place_of("s3://bucket/a/b/")
        assert place == ObjectPath("s3://bucket", "a/b")
        assert str(place / "c") == "s3://bucket/a/b/c"
        assert (place.name, str(place.parent)) == ("b", "s3://bucket/a")
        assert place_of("gs://bucket") == ObjectPath("gs://bucket")
        assert place_of(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
        assert place_of("a/b") == Path("a/b")
        assert resolved(str(tmp_path)) == tmp_path.resolve()
        assert pickle.loads(pickle.dumps(place)) == place  # noqa: S301

    def test_what_lies_inside(self) -> None:
        place = ObjectPath.parse("s3://bucket/a")
        assert (place / "b").is_relative_to(place)
        assert place.is_relative_to(place)
        assert place.is_relative_to(ObjectPath.parse("s3://bucket"))
        assert not ObjectPath.parse("s3://bucket/ab").is_relative_to(place)
        assert not ObjectPath.parse("s3://other/a/b").is_relative_to(place)
        assert not place.is_relative_to(Path("a"))

    @pytest.mark.parametrize(
        "url",
        [
            "s3://key:secret@bucket/a",
            "s3://bucket/a?X-Amz-Signature=secret",
            "s3://bucket/a#secret",
        ],
    )
    def test_a_url_with_a_secret_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="environment") as caught:
            place_of(url)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "s3://",
            "s3:///a",
            "s3://bucket/../other",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3://bucket/a\nb",
            "http://host/a",
            "memory://a",
            "file://host/a",
        ],
    )
    def test_what_is_no_place(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="expected"):
            place_of(url)


class TestObjects:
    def test_write_read_list_delete(self, bucket: ObjectPath) -> None:
        (bucket / "folder" / "one").write(b"1")
        (bucket / "folder" / "deep" / "two").write(b"22")
        (bucket / "folder2").write(b"beside")
        folder = bucket / "folder"
        assert folder.files() == {"one": 1, "deep/two": 2}
        assert folder.names() == {"one", "deep"}
        assert folder.exists()
        assert folder.size() is None
        assert (folder / "one").read_bytes() == b"1"
        before = (folder / "one").stamp()
        (folder / "one").write(b"3")
        assert (folder / "one").stamp() != before
        folder.delete()
        assert not folder.exists()
        assert bucket.files() == {"folder2": 6}
        folder.delete()
        with pytest.raises(FileNotFoundError):
            (folder / "one").read_bytes()
        with pytest.raises(FileNotFoundError):
            (folder / "one").stamp()

    def test_of_many_that_create_one_succeeds(self, bucket: ObjectPath) -> None:
        won: list[int] = []
        start = threading.Barrier(8)

        def create(number: int) -> None:
            start.wait()
            try:
                (bucket / "one").create(str(number).encode())
            except FileExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert (bucket / "one").read_bytes() == str(won[0]).encode()
        # The same content again is an answer that was lost and asked for anew.
        (bucket / "one").create(str(won[0]).encode())


class TestErrors:
    def test_a_bucket_that_is_not_there(self, bucket: ObjectPath) -> None:
        missing = ObjectPath.parse("s3://no-such-bucket/a")
        with pytest.raises(ConfigurationError, match="no such bucket"):
            missing.write(b"")
        with pytest.raises(ConfigurationError, match="no such bucket"):
            missing.files()
        with pytest.raises(ConfigurationError, match="no such bucket"):
            (missing / "b").read_bytes()

    def test_credentials_that_are_not_accepted(
        self, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket.write(b"1")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anothersecret")
        for attempt in (bucket.read_bytes, bucket.files, bucket.delete, lambda: bucket.write(b"")):
            with pytest.raises(ConfigurationError, match="refuses access") as caught:
                attempt()
            assert "\n" not in str(caught.value)
            assert "anothersecret" not in str(caught.value)

    def test_a_server_that_is_gone(
        self, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setenv(DEADLINE, "0.3")
        with pytest.raises(RunFailed, match="object store failed") as caught:
            bucket.read_bytes()
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "1000"])
    def test_a_deadline_that_is_none(
        self, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch, seconds: str
    ) -> None:
        monkeypatch.setenv(DEADLINE, seconds)
        with pytest.raises(ConfigurationError, match=DEADLINE):
            bucket.exists()

    def test_records_do_not_cross_a_network_in_the_clear(
        self, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example.com")
        with pytest.raises(ConfigurationError, match="https"):
            bucket.exists()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:secret@127.0.0.1:9")
        with pytest.raises(ConfigurationError, match="AWS_ENDPOINT_URL") as caught:
            bucket.exists()
        assert "secret" not in str(caught.value)
