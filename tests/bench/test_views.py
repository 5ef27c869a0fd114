"""The benchmark of views counts the same number of views for each contestant."""

from support.image_files import SIZE

from rdm_solo.bench import views as bench_views
from rdm_solo.data import Pipeline


def test_the_benchmark_compares_equal_numbers_of_views(tmp_path):
    assert [make() for make in bench_views.in_memory(Pipeline(32), n=6, batch=4)] == [12, 12]
    bench_views.write_jpegs(tmp_path, 3, 60, 80)
    made = [make() for make in bench_views.from_files(Pipeline(SIZE, blur=0.5), tmp_path, batch=2)]
    assert made == [6, 6, 6]
