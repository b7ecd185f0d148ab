//go:build linux && amd64

package dropin

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestInterfaces: a program's devices are on the interface of the default route, or else on one
// with a global address. The first interface, which has a link-local address, is not used. With one
// flag there are devices of each interface with a global address, shared by two programs. devinfo
// reports the interface and the reason.
func TestInterfaces(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devices", "ibverbs-utils")
	needs(t, "/usr/sbin/ip", "iproute2")
	softrnic, dir := command(t), shared(t)
	const setUp = `set -e
		ip link set lo up
		ip link add eth10 type veth peer name eth11; ip link add eth12 type veth peer name eth13; ip link add eth14 type veth peer name eth15
		for i in eth10 eth11 eth12 eth13 eth14 eth15; do ip link set $i up; done
		ip address add 10.77.1.1/24 dev eth12; ip address add 10.77.2.1/24 dev eth14
		why() { "$0" devinfo --link kernel | grep netdev; }
		why
		ip route add default via 10.77.2.254 dev eth14
		why
		export SOFTRNIC_LOG=warn
		"$0" run -- sh -c 'cat /sys/class/infiniband/softrnic0/ports/1/gid_attrs/ndevs/1'
		"$0" devinfo --link kernel:all | grep -e netdev -e hca_id
		"$0" run --link kernel:all -- sh -c 'echo $(ibv_devices | tail -n +3 | awk "{print \$1}") $(cat /sys/class/infiniband/softrnic*/ports/1/gid_attrs/ndevs/1 | sort -u)'
		"$0" run --link kernel:all -- ibv_rc_pingpong -d softrnic1 -g 1 -n 100 & sleep 0.1
		until "$0" run --link kernel:all -- ibv_rc_pingpong -d softrnic0 -g 1 -n 100 127.0.0.1; do sleep 0.2; done
		wait $!`
	unshare := []string{"unshare", "--net", "--mount"}
	if try := exec.Command("unshare", "--user", "--net", "true"); asNobody().try(try) {
		unshare = append(unshare, "--user", "--map-root-user")
	} else if exec.Command("unshare", "--net", "true").Run() != nil {
		t.Skip("this user may make no network namespace")
	}
	cmd := exec.CommandContext(t.Context(), unshare[0], append(unshare[1:], "sh", "-c", setUp, softrnic)...)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir}, "/"
	if len(unshare) > 3 {
		cmd.SysProcAttr = asNobody().attr
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	at := string(out)
	for _, want := range []string{
		"eth12, the first with a global address", "eth14, of the default route", "eth14\n", "hca_id:\tsoftrnic", "netdev:", "eth14\n",
		"hca_id:", "eth12\n",
		"softrnic0 softrnic0_iw softrnic1 softrnic1_iw eth12 eth14", "100 iters in",
	} {
		_, rest, found := strings.Cut(at, want)
		if !found {
			t.Fatalf("there is no %q in, or not in this order:\n%s", want, out)
		}
		at = rest
	}
}
