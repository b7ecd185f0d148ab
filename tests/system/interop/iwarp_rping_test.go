//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// iwarpRping is one run of `softrnic rping` against the kernel's over siw.
type iwarpRping struct {
	peer        *peer.Peer
	program     string // softrnic
	here, there string
	cidr        string
	size        int
}

func (r iwarpRping) softrnic(ctx context.Context, t *testing.T, args string) (c *process) {
	t.Helper()
	capture := filepath.Join(t.TempDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormedIWARP(t, capture) })
	return startProcess(t, r.peer.Netns.Command(ctx, r.program, strings.Fields(fmt.Sprintf(
		"rping --transport iwarp %s --link tap:softrnic0,bridge=%s --mac %v --addr %s --capture %s",
		args, r.peer.Netns.Bridge, softrnicMAC, r.cidr, capture))...))
}

// client runs softrnic as the client of the kernel's server.
func (r iwarpRping) client(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	serving, err := r.peer.Start(fmt.Sprintf("rping -s -a %s -v -S %d", r.there, r.size))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	r.peer.Run(t, untilListens("rping"))
	client := r.softrnic(ctx, t, fmt.Sprintf("-c -a %s -S %d -v -V -C 100", r.there, r.size))
	client.wait(t)
	if n := bytes.Count(client.stdout.Bytes(), []byte("ping data: rdma-ping-")); n != 100 {
		t.Errorf("softrnic prints %d pings, want 100", n)
	}
	if code, err := serving.Wait(ctx); err != nil || code != 0 {
		t.Errorf("rping -s: exit status %d, %v\n%.2000s", code, err, serving.Output())
	}
	if n := strings.Count(serving.Output(), "server ping data: rdma-ping-"); n != 100 {
		t.Errorf("rping -s prints %d pings, want 100", n)
	}
}

// server runs softrnic as the server of the kernel's client.
func (r iwarpRping) server(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	serving := r.softrnic(ctx, t, fmt.Sprintf("-s -d -v -S %d", r.size))
	serving.await(t, "msg=listening")
	out, code, err := rpingClient(ctx, r.peer, fmt.Sprintf("rping -c -a %s -S %d -v -V -C 100", r.here, r.size))
	if err != nil || code != 0 {
		t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
		cancel()
	}
	serving.wait(t)
	if n := bytes.Count(serving.stdout.Bytes(), []byte("server ping data: rdma-ping-")); n != 100 {
		t.Errorf("softrnic prints %d pings, want 100", n)
	}
}

func TestIWARPRping(t *testing.T) {
	gate.System(t)
	p := cmPeer(t, 2, verbs.IWARP)
	program := softrnicProgram(t)
	sizes := []int{64}
	if gate.InLong() {
		sizes = append(sizes, 65000)
	}
	for _, size := range sizes {
		for _, family := range families(t) {
			r := iwarpRping{p, program, softrnicAddr4.String(), p.Addr4().String(), softrnicCIDR4, size}
			if family == "IPv6" {
				r = iwarpRping{p, program, softrnicAddr6.String(), p.Addr6().String(), softrnicCIDR6, size}
			}
			t.Run(fmt.Sprintf("client/%s,size=%d", family, size), r.client)
			t.Run(fmt.Sprintf("server/%s,size=%d", family, size), r.server)
		}
	}
}

// In ucmatose the server sends first, which needs peer-to-peer mode; a client on siw does not
// request it.
func TestIWARPUcmatose(t *testing.T) {
	gate.System(t)
	p := cmPeer(t, 2, verbs.IWARP)
	dev := openSoftRNIC(t, capturedIWARP(t, openTAP(t, p.Netns)),
		&rdmatransport.Config{IWARP: iwarp.Config{SendFirst: true}}).(softrnic).dev
	testUcmatose(t, cmLab{p, dev, verbs.IWARP})
}
