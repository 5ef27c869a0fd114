"""The benchmark of reading gives both contestants the same images."""

from rdm_solo import data
from rdm_solo.bench import reading
from rdm_solo.data.decoding import Decoder


def test_the_benchmark_reads_the_same_images_from_both(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PICTURES", 2)
    monkeypatch.setattr(reading, "COPIES", 3)
    folder, shards = reading.write_images(tmp_path)
    reading.forget(tmp_path)
    assert len(folder) == len(shards) == 6
    assert [folder.content(i) for i in range(6)] == [shards.content(i) for i in range(6)]
    asked = []
    for files in (folder, shards):
        monkeypatch.setattr(type(files), "content", lambda self, i: asked.append(i) or b"")
        reading._reading(files, [4, 2], None)()
    assert asked == [4, 2, 4, 2]
    broken = Decoder(shards, data.Views([data.Pipeline(size=224)]), seed=0)[0, [1]].broken
    assert list(broken.values()) == ["is empty"]
