#!/bin/sh
# Builds the drop-in libraries and the command softrnic, and gives their devices to the later
# commands of a pipeline. It runs on Debian and Ubuntu, and needs Go. The arguments are Debian
# packages with RDMA programs.
#
#	eval "$(cmd/dropin/setup.sh ibverbs-utils perftest)" && ibv_devices
#
# It prints the environment of programs as commands of a shell, or the command false if it fails. In
# a workflow of GitHub, later steps have this environment. PREFIX is the directory to install to.
set -eu
trap '[ $? = 0 ] || echo false' EXIT # eval of no command would succeed
prefix=${PREFIX:-${RUNNER_TEMP:-$HOME/.local}/softrnic}
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
cd "$(dirname "$0")/../.."

# Packages that are missing.
missing=
for package in gcc libc6-dev libibverbs-dev librdmacm-dev ca-certificates "$@"; do
	dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
done
if [ -n "$missing" ]; then
	root=
	[ "$(id -u)" = 0 ] || root=sudo
	$root apt-get update -qq >&2
	# shellcheck disable=SC2086 # each word is a package
	$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o DPkg::Lock::Timeout=300 $missing >&2
fi

go run ./cmd/dropin/build -prefix "$prefix" >&2

libs=$prefix/lib/softrnic
if [ -n "${GITHUB_ENV:-}" ]; then
	echo "LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" >>"$GITHUB_ENV"
	echo "$prefix/bin" >>"$GITHUB_PATH"
fi
echo "export LD_LIBRARY_PATH='$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}' PATH='$prefix/bin:$PATH'"
