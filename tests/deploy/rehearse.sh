#!/bin/bash
# Build an image of the Dockerfile and run it as compose does, without Docker: for machines that have
# Debian's podman, buildah, runc, catatonit and debootstrap, and for root.
#
#   tests/deploy/rehearse.sh TARGET ARTIFACT [BUILDAH_ARGUMENT ...]
#
# ARTIFACT is a folder made by narsil export. Further arguments reach buildah (--build-arg, -v).
# The base image is made by debootstrap, once.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1 artifact=$(realpath "$2")
shift 2
base=localhost/narsil-base image=localhost/narsil:$target name=narsil-rehearsal
podman() { command podman --runtime runc --cgroup-manager cgroupfs "$@"; }
inside() { podman exec $name "$@"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

if ! command podman image exists $base; then
    folder=$(mktemp -d)
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder"
    container=$(buildah from scratch)
    buildah add -q "$container" "$folder" /
    buildah commit -q "$container" $base
    buildah rm "$container"
    rm -rf "$folder"
fi
buildah bud -q --layers --isolation chroot --network host --format docker --target "$target" \
    --build-arg PYTHON_IMAGE=$base "$@" -t "$image" .

# What docker-compose.yml says of a gateway. podman's own health checks need systemd: see below.
podman run -d --name $name --network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
    --read-only --read-only-tmpfs=false --tmpfs /tmp --tmpfs /var/lib/narsil:mode=0700,U \
    --cap-drop ALL --security-opt no-new-privileges --init --no-healthcheck \
    -v "$artifact:/models/demo:ro" "$image" > /dev/null
trap 'podman rm -f $name > /dev/null' EXIT

# The image's own health check, run as Docker would.
mapfile -t health < <(command podman image inspect "$image" --format '{{range .HealthCheck.Test}}{{println .}}{{end}}')
healthy=no
for _ in $(seq 240); do
    inside "${health[@]:1}" 2> /dev/null && { healthy=yes; break; }
    sleep 0.5
done
[ $healthy = yes ] || { podman logs $name; fail "never healthy"; }
[ "$(inside id -u)" = 10001 ] || fail "not the user narsil"
inside sh -c 'touch /x /opt/narsil/x /models/x 2> /dev/null' && fail "something can be written"
inside sh -c 'command -v gcc cc make pip' && fail "build tools are inside"
inside narsil predict /models/demo/example.json --transport grpc --url grpc://127.0.0.1:50051 \
    --describe http://127.0.0.1:8000
inside narsil predict /models/demo/example.json --transport http3 --url https://127.0.0.1:8443

podman stop -t 40 $name > /dev/null
podman logs $name 2>&1 | grep -q "draining: not ready, serving on for 5 s" || fail "it did not drain"
[ "$(podman inspect $name --format '{{.State.ExitCode}}')" = 0 ] || fail "it did not end with 0"
command podman image inspect "$image" --format "$target: {{.Size}} bytes, all well"
