#!/bin/sh
# Makes the profile for the profile-guided optimization of the command and the drop-in libraries, by
# cmd/dropin/build. Run it as root on an idle machine after a change of a hot path. It takes
# some three minutes.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go run ./tests/bench/goals -rounds 1 -run 'KiB|8 bytes|rsocket' -pprof "$dir"
# The pattern of C programs: small messages, of memory that is not Go's, through the engine's
# functions for C.
go test -run '^$' -bench 'DirectMapped|DirectPingPong' -benchtime 3s \
  -cpuprofile "$dir/mapped.pprof" -o "$dir/rdmatransport.test" ./rdmatransport
go test -run '^$' -bench 'PostPoll' -benchtime 3s \
  -cpuprofile "$dir/postpoll.pprof" -o "$dir/libsoftrnic.test" ./cmd/dropin/libsoftrnic
go tool pprof -proto "$dir"/*.pprof >cmd/softrnic/release.pgo
