#!/bin/sh
# Makes the profile by which cmd/libsoftrnic/build has the command and the drop-in libraries optimized. Run it
# as root on an idle machine when hot paths have changed; it takes some three minutes.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go run ./tests/bench/goals -rounds 1 -run 'KiB|8 bytes|rsocket' -pprof "$dir"
# What C programs do: small messages, of memory that is not Go's.
go test -run '^$' -bench 'DirectForeign|DirectPingPong' -benchtime 3s -cpuprofile "$dir/foreign.pprof" -o "$dir/rdmatransport.test" ./rdmatransport
go tool pprof -proto "$dir"/*.pprof >cmd/softrnic/release.pgo
