//go:build linux

package interop

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/tests/interop/peer"
)

// captured is a link whose frames tshark looks at when the test has ended and closed it.
func captured(t *testing.T, l link.Link) link.Link {
	t.Helper()
	file := filepath.Join(t.TempDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormed(t, file) })
	c, err := capture.Create(l, file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wellFormed checks that tshark finds RoCEv2 in a capture and nothing malformed.
func wellFormed(t *testing.T, file string) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		peer.Unavailable(t, fmt.Errorf("captures are checked with tshark (apt-get install tshark): %w", err))
	}
	if tshark(t, file, "-Y", "infiniband.bth") == "" {
		t.Error("tshark finds no RoCEv2 packet in what was captured")
	}
	if bad := tshark(t, file, "-Y", "_ws.malformed || _ws.short || _ws.expert.severity == error"); bad != "" {
		lines := strings.SplitAfterN(bad, "\n", 11)
		t.Errorf("tshark finds malformed packets in what was captured:\n%s", strings.Join(lines[:min(10, len(lines))], ""))
	}
}

// tsharkArgs keep tshark from two errors of its own: RoCEv2 over IPv6 rightly has no UDP checksum (IBTA A17.3.1), and
// the tests' payload is nothing that a protocol above could be guessed from.
var tsharkArgs = func() []string {
	args := []string{"-n", "-o", "udp.ignore_ipv6_zero_checksum:TRUE"}
	for _, guess := range []string{"drbd", "fcoib", "infiniband_sdp", "iser", "lnet", "nvme-rdma", "rpcordma", "smb_direct", "smc"} {
		args = append(args, "--disable-protocol", guess)
	}
	return args
}()

func tshark(t *testing.T, file string, args ...string) string {
	t.Helper()
	var warnings strings.Builder
	cmd := exec.Command("tshark", slices.Concat(tsharkArgs, []string{"-r", file}, args)...)
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %s: %v\n%s", strings.Join(args, " "), err, warnings.String())
	}
	return string(out)
}
