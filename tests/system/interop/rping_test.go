//go:build linux

package interop

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// untilRpingListens waits, in a peer, for a server of rdma_cm.
const untilRpingListens = "until rdma resource show cm_id | grep -q 'state LISTEN'; do sleep 0.05; done"

// rpingClient runs a command with rping -c in a peer. At the end, rping's main thread closes the
// channel on which another thread may wait for events. That thread then ends the process with 255
// (rping.c, cm_thread), which is not a failure.
func rpingClient(ctx context.Context, p *peer.Peer, command string) (out string, code int, err error) {
	out, code, err = p.Exec(ctx, command)
	if code == 255 && strings.HasSuffix(out, "client DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor\n") {
		code = 0
	}
	return out, code, err
}

// refusedRping runs a command with rping -c in a peer that is not to connect. rping does not always
// end by itself, so it is killed after it has said that it has not connected.
func refusedRping(ctx context.Context, p *peer.Peer, command string) (out string, code int, err error) {
	process, err := p.Start(command)
	if err != nil {
		return "", -1, err
	}
	kill := func() { _ = process.Kill() }
	defer context.AfterFunc(ctx, kill)()
	for said := bufio.NewScanner(process); said.Scan(); {
		if strings.HasPrefix(said.Text(), "connect error ") {
			kill()
			break
		}
	}
	if code, err = process.Wait(ctx); err == nil {
		err = ctx.Err() // it was killed because of that
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", command, err)
	}
	return process.Output(), code, err
}

// rping is one run of `softrnic rping` against the kernel's rping.
type rping struct {
	peer    *peer.Peer
	program string // softrnic
	ipv6    bool
	size    int
	options string // for both clients
}

func (r rping) String() string {
	family := "IPv4"
	if r.ipv6 {
		family = "IPv6"
	}
	return strings.TrimSpace(fmt.Sprintf("%s,size=%d%s", family, r.size, strings.ReplaceAll(" "+r.options, " ", "")))
}

func (r rping) addrs() (here, there, cidr string) {
	if r.ipv6 {
		return softrnicAddr6.String(), r.peer.Addr6().String(), softrnicCIDR6
	}
	return softrnicAddr4.String(), r.peer.Addr4().String(), softrnicCIDR4
}

func (r rping) softrnic(ctx context.Context, t *testing.T, args string) *exec.Cmd {
	_, _, cidr := r.addrs()
	capture := filepath.Join(t.TempDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormed(t, capture) })
	return r.peer.Netns.Command(ctx, r.program, strings.Fields(fmt.Sprintf(
		"rping %s --link tap:softrnic0,bridge=%s --mac %v --mtu %d --addr %s --capture %s",
		args, r.peer.Netns.Bridge, softrnicMAC, r.peer.MTU, cidr, capture))...)
}

// client runs softrnic as the client of the kernel's server.
func (r rping) client(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, there, _ := r.addrs()
	serving, err := r.peer.Start(fmt.Sprintf("rping -s -a %s -v -S %d", there, r.size))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	r.peer.Run(t, untilRpingListens)
	out, err := r.softrnic(ctx, t, fmt.Sprintf("-c -a %s -S %d -v -V -C 100 %s", there, r.size, r.options)).Output()
	if err != nil {
		t.Errorf("softrnic: %v\n%.2000s", err, out)
	}
	if n := bytes.Count(out, []byte("ping data: rdma-ping-")); n != 100 {
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
func (r rping) server(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving := r.softrnic(ctx, t, fmt.Sprintf("-s -d -v -S %d", r.size))
	var pings bytes.Buffer
	log := newAwaited("msg=listening")
	serving.Stdout, serving.Stderr = &pings, log
	if err := serving.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serving.Wait() }()
	select {
	case <-log.seen:
	case err := <-ended:
		t.Fatalf("softrnic: %v\n%s", err, log)
	}
	here, _, _ := r.addrs()
	out, code, err := rpingClient(ctx, r.peer, fmt.Sprintf("rping -c -a %s -S %d -v -V -C 100 %s", here, r.size, r.options))
	if err != nil || code != 0 {
		t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
		cancel()
	}
	if n := strings.Count(out, "ping data: rdma-ping-"); n != 100 {
		t.Errorf("rping -c prints %d pings, want 100:\n%.2000s", n, out)
		cancel()
	}
	if err := <-ended; err != nil {
		t.Errorf("softrnic: %v\n%s", err, log)
	}
	if n := bytes.Count(pings.Bytes(), []byte("server ping data: rdma-ping-")); n != 100 {
		t.Errorf("softrnic prints %d pings, want 100", n)
	}
}

// awaited is output that reports when it contains a text. (It is no bytes.Buffer, whose ReadFrom
// would bypass Write.)
type awaited struct {
	said bytes.Buffer
	text string
	seen chan struct{}
	once sync.Once
}

func newAwaited(text string) *awaited { return &awaited{text: text, seen: make(chan struct{})} }

func (a *awaited) Write(p []byte) (int, error) {
	n, err := a.said.Write(p)
	if strings.Contains(a.said.String(), a.text) {
		a.once.Do(func() { close(a.seen) })
	}
	return n, err
}

// String may be called when the program has ended.
func (a *awaited) String() string { return a.said.String() }

func TestRping(t *testing.T) {
	gate.System(t)
	program := softrnicProgram(t)
	p := peer.Boot(t, peer.Config{ID: 2, MTU: 1500})[0]
	for _, family := range families(t) {
		ipv6 := family == "IPv6"
		for _, run := range []rping{
			{peer: p, program: program, ipv6: ipv6, size: 64},
			{peer: p, program: program, ipv6: ipv6, size: 65000},
			{peer: p, program: program, ipv6: ipv6, size: 64, options: "-d"},
		} {
			t.Run(fmt.Sprintf("client/%v", run), run.client)
			t.Run(fmt.Sprintf("server/%v", run), run.server)
		}
	}
}
