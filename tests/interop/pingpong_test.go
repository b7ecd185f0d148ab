//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/interop/peer"
)

// pingpong is one run of `softrnic pingpong rc` against ibv_rc_pingpong, with validated data.
type pingpong struct {
	peer    *peer.Peer
	program string // softrnic
	link    string // for --link
	ipv6    bool
	mtu     int // path MTU
	size    int
}

func (p pingpong) String() string {
	family := "IPv4"
	if p.ipv6 {
		family = "IPv6"
	}
	return fmt.Sprintf("%s,MTU=%d,size=%d", family, p.mtu, p.size)
}

func (p pingpong) addrs() (here, there netip.Addr, cidr string) {
	if p.ipv6 {
		return softrnicAddr6, p.peer.Addr6(), softrnicCIDR6
	}
	return softrnicAddr4, p.peer.Addr4(), softrnicCIDR4
}

func (p pingpong) kernel(t *testing.T) string {
	t.Helper()
	_, there, _ := p.addrs()
	return fmt.Sprintf("ibv_rc_pingpong -c -n 20 -d rxe0 -m %d -s %d -g %d", p.mtu, p.size, gidIndex(t, p.peer, there))
}

// softrnic prepares the command; an empty server makes it the server.
func (p pingpong) softrnic(ctx context.Context, t *testing.T, server string) *exec.Cmd {
	t.Helper()
	_, _, cidr := p.addrs()
	args := []string{"pingpong", "rc", "-c", "-n", "20", "-m", fmt.Sprint(p.mtu), "-s", fmt.Sprint(p.size),
		"--link", p.link, "--mac", softrnicMAC.String(), "--addr", cidr}
	if p.ipv6 { // the kernel's server meets its clients on IPv4 only, and its GID is IPv6 all the same
		args = append(args, "--addr", softrnicCIDR4, "-g", "1")
	}
	capture := filepath.Join(t.TempDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormed(t, capture) })
	args = append(args, "--capture", capture)
	if strings.HasPrefix(p.link, "tap:") {
		args = append(args, "--mtu", fmt.Sprint(p.peer.MTU))
	}
	if server != "" {
		args = append(args, server)
	}
	return p.peer.Netns.Command(ctx, p.program, args...)
}

// client runs softrnic as the client of the kernel's server.
func (p pingpong) client(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving, err := p.peer.Start(p.kernel(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	p.peer.Run(t, untilPingpongListens)
	if out, err := p.softrnic(ctx, t, p.peer.Addr4().String()).CombinedOutput(); err != nil {
		t.Errorf("softrnic: %v\n%s", err, out)
	}
	if code, err := serving.Wait(ctx); err != nil || code != 0 {
		t.Errorf("ibv_rc_pingpong: exit status %d, %v\n%s", code, err, serving.Output())
	}
}

// server runs softrnic as the server of the kernel's client.
func (p pingpong) server(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving := p.softrnic(ctx, t, "")
	var said bytes.Buffer
	serving.Stdout, serving.Stderr = &said, &said
	if err := serving.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serving.Wait() }()

	here, _, _ := p.addrs()
	// It has no way to say when it listens: try until it does, or has ended.
	command := p.kernel(t) + " " + here.String()
	for {
		out, code, err := p.peer.Exec(ctx, command)
		if err == nil && strings.Contains(out, "Couldn't connect") && len(ended) == 0 {
			continue
		}
		if err != nil || code != 0 {
			t.Errorf("ibv_rc_pingpong: exit status %d, %v\n%s", code, err, out)
			cancel()
		}
		break
	}
	if err := <-ended; err != nil {
		t.Errorf("softrnic: %v\n%s", err, said.String())
	}
}

func TestPingpong(t *testing.T) {
	program := filepath.Join(t.TempDir(), "softrnic")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/softrnic/softrnic/cmd/softrnic").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, mtu := range []struct{ link, path int }{{1500, 1024}, {4200, 4096}} {
		p := peer.Boot(t, peer.Config{ID: 2, MTU: mtu.link})[0]
		links := []struct {
			medium, spec string
			sizes        []int
		}{
			{"tap", "tap:softrnic0,bridge=" + p.Netns.Bridge, []int{1, 1024, 1025, 4096, 100_000, 1 << 20}},
			{"packet", "packet:" + p.Netns.Veth(t), []int{1025, 100_000}},
		}
		for _, l := range links {
			for _, ipv6 := range []bool{false, true} {
				for _, size := range l.sizes {
					run := pingpong{peer: p, program: program, link: l.spec, ipv6: ipv6, mtu: mtu.path, size: size}
					t.Run(fmt.Sprintf("%s/client/%v", l.medium, run), run.client)
					t.Run(fmt.Sprintf("%s/server/%v", l.medium, run), run.server)
				}
			}
		}
	}
}
