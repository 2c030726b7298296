#!/usr/bin/env bash
# perf_analyzer against a running server, with the rows of a file that `narsil perf-data` wrote:
#   perf_analyzer.sh grpc|http HOST:PORT MODEL DATA.json [OPTION...]
set -euo pipefail
tools=$(dirname "$0")/../../.clients
exec "$tools/bin/perf_analyzer" -i "$1" -u "$2" -m "$3" --input-data "$4" "${@:5}"
