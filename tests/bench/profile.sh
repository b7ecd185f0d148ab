#!/bin/sh
# Makes the profile for the profile-guided optimization of the command and the drop-in libraries, by
# cmd/dropin/build. Run it as root on an idle machine after a change of a hot path. It takes
# some three minutes.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go run ./tests/bench/goals -rounds 1 -run 'KiB|8 bytes|rsocket' -pprof "$dir"
# The pattern of C programs: small messages, of memory that is not Go's.
go test -run '^$' -bench 'DirectForeign|DirectPingPong' -benchtime 3s \
  -cpuprofile "$dir/foreign.pprof" -o "$dir/rdmatransport.test" ./rdmatransport
go tool pprof -proto "$dir"/*.pprof >cmd/softrnic/release.pgo
