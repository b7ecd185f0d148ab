//go:build linux

package interop

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/vlan"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// vlanNet is a VLAN, with its addresses.
type vlanNet struct {
	id             int
	here4, here6   netip.Prefix
	there4, there6 netip.Prefix
}

// newVLAN gives a peer one of Linux's VLAN devices, until the test ends.
func newVLAN(t *testing.T, p *peer.Peer, id int) *vlanNet {
	t.Helper()
	prefix := func(format string, host int) netip.Prefix {
		return netip.MustParsePrefix(fmt.Sprintf(format, 70+id, host))
	}
	const v4, v6 = "10.%d.0.%d/24", "fd%d::%d/64"
	v := &vlanNet{id: id, here4: prefix(v4, 100), here6: prefix(v6, 100), there4: prefix(v4, p.ID), there6: prefix(v6, p.ID)}
	p.Run(t, fmt.Sprintf("ip link add link eth0 name eth0.%d type vlan id %d egress 0:2 && ip link set eth0.%d up && "+
		"ip addr add %v dev eth0.%d && ip addr add %v dev eth0.%d nodad", id, id, id, v.there4, id, v.there6, id))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, code, err := p.Exec(ctx, fmt.Sprintf("ip link del eth0.%d", id)); code != 0 || err != nil {
			t.Errorf("ip link del: %d, %v\n%s", code, err, out)
		}
	})
	return v
}

var vlanMedia = map[string]func(*testing.T, *peer.Netns) link.Link{"tap": openTAP, "packet": openPacket}

// TestVLAN: the Linux network stack and a host in the same VLAN ping each other and transfer much
// data both ways. A ping from another VLAN, or without a VLAN, gets no answer.
func TestVLAN(t *testing.T) {
	gate.System(t)
	const size = 4 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	p := peer.Boot(t, peer.Config{ID: 2, MTU: 4200})[0]
	v, other := newVLAN(t, p, 5), newVLAN(t, p, 6)
	sum := fmt.Sprintf("%x", md5.Sum(data))
	for name, open := range vlanMedia {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "vlan.pcapng")
			taken, err := capture.Create(open(t, p.Netns), file)
			if err != nil {
				t.Fatal(err)
			}
			tagged, err := vlan.New(taken, v.id)
			if err != nil {
				t.Fatal(err)
			}
			host, err := netstack.New(tagged, &netstack.Config{Addrs: []string{v.here4.String(), v.here6.String(), other.here4.String()}})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			for _, addr := range []netip.Addr{v.here4.Addr(), v.here6.Addr()} {
				p.Run(t, fmt.Sprintf("ping -c 3 -s 4000 %v", addr))
			}
			// The same host, from another VLAN and from none.
			p.Run(t, fmt.Sprintf("! ping -c 1 -W 1 %v && ! ping -c 1 -W 1 -I eth0 %v", other.here4.Addr(), v.here4.Addr()))
			if tagged.Foreign() == 0 {
				t.Error("nothing arrived from elsewhere")
			}
			for _, addr := range []netip.Addr{v.here4.Addr(), v.here6.Addr()} {
				l, err := host.ListenStream(netip.AddrPortFrom(addr, 7000))
				if err != nil {
					t.Fatal(err)
				}
				// The peer receives a file, prints its checksum, and sends it back.
				ended := make(chan error, 1)
				go func() { ended <- serveSum(l, data) }()
				out := p.Run(t, fmt.Sprintf("nc %v 7000 </dev/null >/tmp/got && md5sum /tmp/got && nc %v 7000 </tmp/got", addr, addr))
				if err := <-ended; err != nil || !strings.Contains(out, sum) {
					t.Errorf("%v: %v, %s", addr, err, out)
				}
				_ = l.Close()
			}
			_ = host.Close()
			checkTags(t, file, fmt.Sprintf("tcp && vlan.id == %d", v.id), []string{"eth.src", "vlan.priority"}, map[string]bool{
				softrnicMAC.String() + "|0": true, p.MAC().String() + "|2": true})
			traced(t, file, 0)
			if n := len(tshark(t, file, "-Y", "tcp && frame.len > 4218")); n != 0 {
				t.Errorf("frames longer than the MTU: %d bytes of them", n)
			}
		})
	}
}

// serveSum sends data to the first client that connects, and receives the same data from the
// second.
func serveSum(l net.Listener, data []byte) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	if _, err := c.Write(data); err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	if c, err = l.Accept(); err != nil {
		return err
	}
	defer c.Close()
	got, err := io.ReadAll(io.LimitReader(c, int64(len(data))))
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes were returned, which differ from the sent ones", len(got))
	}
	return err
}

// checkTags makes tshark print fields of the packets that pass a filter. The printed values must be
// exactly those of want.
func checkTags(t *testing.T, file, filter string, fields []string, want map[string]bool) {
	t.Helper()
	args := []string{"-Y", filter, "-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(tshark(t, file, args...)) {
		line = strings.TrimSpace(line)
		if !seen[line] && !want[line] {
			t.Errorf("%v: %s, want only %v", fields, line, want)
		}
		seen[line] = true
	}
	for w := range want {
		if !seen[w] {
			t.Errorf("%v: no %s", fields, w)
		}
	}
}

// TestVLANPingpong: rxe's ping-pongs with a device in the VLAN, at path MTU 4096. The packets have
// the service level as priority.
func TestVLANPingpong(t *testing.T) {
	gate.System(t)
	program, captures := softrnicProgram(t), captureDir(t)
	p := peer.Boot(t, peer.Config{ID: 2, MTU: 4200})[0]
	v := newVLAN(t, p, 5)
	run := pingpong{peer: p, program: program, captures: captures, mtu: 4096, size: 100_000, vlan: v, sl: 3}
	for _, medium := range []struct{ name, spec string }{
		{"tap", "tap:softrnic0,bridge=" + p.Netns.Bridge}, {"packet", "packet:" + p.Netns.Veth(t)},
	} {
		run.link = fmt.Sprintf("%s,vlan=%d", medium.spec, v.id)
		for _, family := range families(t) {
			run.ipv6 = family == "IPv6"
			_, there, _ := run.addrs()
			run.gid = gidIndex(t, p, there)
			for _, run.service = range []string{"rc", "uc", "ud"} {
				if run.size = 100_000; run.service == "ud" {
					run.size = 4096
				}
				for side, f := range map[string]func(*testing.T){"client": run.client, "server": run.server} {
					t.Run(fmt.Sprintf("%s/%s/%s/%v", medium.name, run.service, side, run), func(t *testing.T) {
						f(t)
						file := run.capture(t) // of the first attempt
						checkTags(t, file, "infiniband.bth", []string{"eth.src", "vlan.id", "vlan.priority"}, map[string]bool{
							softrnicMAC.String() + "|5|3": true, p.MAC().String() + "|5|2": true})
					})
				}
			}
		}
	}
}
