#!/bin/bash
# Build an image of the Dockerfile and run it as compose does, without Docker: for machines that have
# Debian's podman, buildah, runc, catatonit and debootstrap, and for root.
#
#   tests/deploy/rehearse.sh TARGET ARTIFACT [BUILDAH_ARGUMENT ...]
#
# ARTIFACT is a folder made by narsil export. Further arguments reach buildah (--build-arg, -v).
# The base image is made by debootstrap, once; BUILD=no takes the target's image that is there. NARSIL
# names the narsil of this machine that puts the load on, if it is not .venv/bin/narsil. Where no GPU is,
# the image cuda has to say so, and then computes on the CPU, with a stand-in for the library of the
# driver's that its packages are linked to.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1 artifact=$(realpath "$2") narsil=${NARSIL:-.venv/bin/narsil}
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
[ "${BUILD:-yes}" = no ] || buildah bud -q --layers --isolation chroot --network host --format docker --target "$target" \
    --build-arg PYTHON_IMAGE=$base "$@" -t "$image" .

said=$(mktemp -d)
trap 'podman rm -f $name > /dev/null 2>&1; rm -rf "$said"' EXIT
# What docker-compose.yml says of a gateway. podman's own health checks need systemd: see below.
hardened=(--network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096
    --read-only --read-only-tmpfs=false --tmpfs /tmp --tmpfs /var/lib/narsil:mode=0700,U
    --cap-drop ALL --security-opt no-new-privileges --init --no-healthcheck
    -v "$artifact:/models/demo:ro")

refuses() { # WORDS: it ends, saying so.
    podman run --rm "${hardened[@]}" "$image" > "$said/refused" 2>&1 && fail "it serves without a GPU"
    tail -n 1 "$said/refused"
    grep -q -e "$1" "$said/refused" || fail "it does not say: $1"
}
if [ "$target" = cuda ] && [ ! -e /dev/nvidiactl ]; then
    refuses "--gpus all"
    nvml=libnvidia-ml.so.1
    for function in Init_v2 DeviceGet{Count_v2,HandleByIndex_v2,NvLinkRemotePciInfo_v2,NvLinkState,PciInfo_v3}; do
        echo "int nvml$function(void) { return 9; } /* no driver */"
    done | cc -shared -fPIC -Wl,-soname,$nvml -x c - -o "$said/$nvml"
    hardened+=(-v "$said/$nvml:/usr/lib/$(uname -m)-linux-gnu/$nvml:ro")
    refuses "sees 0 CUDA devices"
    hardened+=(-e NARSIL_BACKEND__DEVICE=cpu)
fi
podman run -d --name $name "${hardened[@]}" "$image" > /dev/null

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
curl -sf http://127.0.0.1:8000/v1/predict -H 'content-type: application/json' -d "@$artifact/example.json" \
    -o "$said/answer" || fail "no answer to curl"
grep predictions "$said/answer" > /dev/null || fail "no scores"
inside narsil predict /models/demo/example.json --transport grpc --url grpc://127.0.0.1:50051 \
    --describe http://127.0.0.1:8000
inside narsil predict /models/demo/example.json --transport http3 --url https://127.0.0.1:8443

# SIGTERM under load: all that was in flight is answered.
pid=$(podman inspect $name --format '{{.State.Pid}}')
"$narsil" bench "$artifact" --url grpc://127.0.0.1:50051 --concurrency 16 --rows 10 --seconds 9 --repeats 1 \
    --stop-pid "$pid" --signal-after 1 --no-calibration --json "$said/load.json" || true
python3 - "$said/load.json" <<'EOF' || fail "what was in flight was not answered"
import json, sys
(run,) = json.load(open(sys.argv[1]))["runs"]
print("after SIGTERM:", run["after_sigterm"])
sys.exit(set(run["after_sigterm"]["in_flight"]) != {"ok"})
EOF
podman wait $name > /dev/null
podman logs $name > "$said/log" 2>&1
grep -q "draining: not ready, serving on for 5 s" "$said/log" || fail "it did not drain"
[ "$(podman inspect $name --format '{{.State.ExitCode}}')" = 0 ] || fail "it did not end with 0"
command podman image inspect "$image" --format "$target: {{.Size}} bytes, all well"
