from pathlib import Path

import pytest

from backends.cpus import cgroup_cpus, usable_cpus


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/pod/app\n",
                "sys/fs/cgroup/pod/app/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "0::/seen/only/on/the/host\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/app\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
    ids=["none", "v2-max", "v2", "v2-parent-binds", "v2-container", "v1", "v1-unlimited"],
)
def test_the_quota_is_the_least_one_on_the_way_to_the_root(
    tmp_path: Path, files: dict[str, str], cpus: float | None
) -> None:
    assert cgroup_cpus(tree(tmp_path, files)) == cpus


def test_half_a_cpu_is_one_thread(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}
    assert usable_cpus(tree(tmp_path, files)) == 1


def test_this_process_may_use_at_least_one_cpu() -> None:
    assert usable_cpus() >= 1
