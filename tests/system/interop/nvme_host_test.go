//go:build linux

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

// nvmetLab is a peer whose kernel is a target, and a device for hosts.
type nvmetLab struct {
	cmLab
	addr string
}

const nvmetSize = 32 << 20 // of each namespace

// newNVMetLab returns a peer with a target.
func newNVMetLab(t *testing.T, transport verbs.Transport) *nvmetLab {
	t.Helper()
	p := cmPeer(t, 2, transport)
	dev := openSoftRNIC(t, openTAP(t, p.Netns), nil).(softrnic).dev
	serveNVMet(t, p)
	return &nvmetLab{cmLab{p, dev, transport}, netip.AddrPortFrom(p.Addr4(), 4420).String()}
}

// serveNVMet configures a peer's target: namespace 1 is null_blk with memory, and namespace 2 a
// file.
func serveNVMet(t *testing.T, p *peer.Peer) {
	t.Helper()
	p.Run(t, fmt.Sprintf(`set -e
grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config
modprobe null_blk nr_devices=0
modprobe nvmet_rdma
cd /sys/kernel/config/nullb
mkdir nullb0
cd nullb0
echo %d >size
echo 1 >memory_backed
echo 1 >discard
echo 1 >power
dd if=/dev/zero of=/nvmet.img bs=1M count=%[1]d 2>/dev/null
cd /sys/kernel/config/nvmet
mkdir subsystems/%[2]s
cd subsystems/%[2]s
echo 1 >attr_allow_any_host
mkdir namespaces/1 namespaces/2
echo /dev/nullb0 >namespaces/1/device_path
echo 1 >namespaces/1/enable
echo /nvmet.img >namespaces/2/device_path
echo 1 >namespaces/2/buffered_io
echo 1 >namespaces/2/enable
cd ../..
mkdir ports/1
cd ports/1
echo rdma >addr_trtype
echo ipv4 >addr_adrfam
echo %[3]v >addr_traddr
echo 4420 >addr_trsvcid
ln -s ../../subsystems/%[2]s subsystems/`, nvmetSize>>20, nvmeNQN, p.Addr4()))
	t.Cleanup(func() {
		if t.Failed() {
			out, _, _ := p.Exec(context.Background(), "dmesg | tail -n 40")
			t.Logf("the peer's kernel:\n%s", out)
		}
		_, _, _ = p.Exec(context.Background(), fmt.Sprintf(`cd /sys/kernel/config/nvmet
rm ports/1/subsystems/%s
rmdir ports/1 subsystems/%[1]s/namespaces/1 subsystems/%[1]s/namespaces/2 subsystems/%[1]s
cd /
rmdir /sys/kernel/config/nullb/nullb0
rm /nvmet.img`, nvmeNQN))
	})
}

func (l *nvmetLab) dial(t *testing.T, cfg host.Config) *host.Controller {
	t.Helper()
	cfg.NQN, cfg.Transport = nvmeNQN, l.transport
	c, err := host.Dial(t.Context(), l.dev, l.addr, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, c.Close)
	return c
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNVMeHost: this side's host finds the kernel's target by discovery, identifies its controller
// and namespaces, and reads what it has written: in capsules, through the pool, and in memory of
// the application with and without windows, which the kernel invalidates.
func TestNVMeHost(t *testing.T) {
	gate.System(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP}[:stacktest.Size(1, 1, 2)] {
		t.Run(transport.String(), func(t *testing.T) {
			l := newNVMetLab(t, transport)
			tracePort(t, l.peer)
			entries, err := host.Discover(t.Context(), l.dev, l.addr, &host.Config{Transport: transport})
			found := false
			for _, e := range entries {
				found = found || e.SubsystemNQN == nvmeNQN && e.Addr.String() == l.addr && e.Transport == nvme.TransportRDMA
			}
			if err != nil || !found {
				t.Fatalf("discover: %+v, %v", entries, err)
			}
			for _, windows := range []bool{false, true} {
				c := l.dial(t, host.Config{Windows: windows})
				if i := c.Identity(); i.SubsystemNQN != nvmeNQN || i.CNTLID != c.ID() {
					t.Errorf("%+v", i)
				}
				if list, err := c.Namespaces(t.Context()); err != nil || len(list) != 2 {
					t.Fatalf("namespaces %v, %v", list, err)
				}
				for id := range uint32(2) {
					ns, err := c.Namespace(t.Context(), id+1)
					fatal(t, err)
					if ns.Size() != nvmetSize {
						t.Errorf("%v", ns)
					}
					l.verify(t, c, ns)
				}
				if s, err := c.SMART(t.Context()); err != nil || s.AvailableSpare > 100 {
					t.Errorf("SMART: %+v, %v", s, err)
				}
				fatal(t, c.Reset(t.Context()))
				ns, err := c.Namespace(t.Context(), 1)
				fatal(t, err)
				l.verify(t, c, ns)
			}
		})
	}
}

// verify writes and reads a namespace in commands of all kinds.
func (l *nvmetLab) verify(t *testing.T, c *host.Controller, ns *host.Namespace) {
	t.Helper()
	want := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(ns.ID())}).Read(want)
	got := make([]byte, len(want))
	for _, n := range []int{ns.BlockSize(), 4096, 8192, 16 << 10, 128 << 10, len(want)} {
		_, err := ns.WriteAt(want[:n], 4096)
		fatal(t, err)
		clear(got)
		_, err = ns.ReadAt(got[:n], 4096)
		fatal(t, err)
		if !bytes.Equal(got[:n], want[:n]) {
			t.Fatalf("%d bytes are read as something else", n)
		}
	}
	m, err := c.Register(want)
	fatal(t, err)
	_, err = ns.WriteMemory(t.Context(), m, 0, len(want), 8<<20)
	fatal(t, err)
	fatal(t, m.Close())
	m, err = c.Register(got)
	fatal(t, err)
	clear(got)
	_, err = ns.ReadMemory(t.Context(), m, 0, len(got), 8<<20)
	fatal(t, err)
	fatal(t, m.Close())
	if !bytes.Equal(got, want) {
		t.Fatal("registered memory is read as something else")
	}
	fatal(t, ns.Flush(t.Context()))
	fatal(t, ns.Discard(t.Context(), 4096, 1<<20))
	if ns.ID() == 1 { // the peer's file system has no operation for it
		fatal(t, ns.WriteZeroes(t.Context(), 8<<20, 1<<20, false))
		_, err = ns.ReadAt(got[:1<<20], 8<<20)
		fatal(t, err)
		if !bytes.Equal(got[:1<<20], make([]byte, 1<<20)) {
			t.Fatal("WriteZeroes leaves something else")
		}
	}
	if _, err := ns.ReadAt(got[:4096], ns.Size()); err != io.EOF {
		t.Fatal(err)
	}
	if err := ns.Compare(t.Context(), want[:4096], 9<<20); err != nil { // Linux's target does not support it
		var status *nvme.StatusError
		if !errors.As(err, &status) || status.Status.Code() != nvme.InvalidOpcode {
			t.Fatal(err)
		}
	}
}

// TestNVMeHostLong: 64 goroutines write, read and verify ranges of their own for a minute, in all
// sizes, with resets of the controller in between.
func TestNVMeHostLong(t *testing.T) {
	gate.Long(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			l := newNVMetLab(t, transport)
			for _, windows := range []bool{false, true} {
				c := l.dial(t, host.Config{Windows: windows, QueueDepth: 31})
				var bytesMoved [2]uint64
				for id := range 2 {
					bytesMoved[id] = l.stress(t, c, uint32(id+1), 30*time.Second)
					fatal(t, c.Reset(t.Context()))
				}
				t.Logf("result: windows %v: null_blk %d MiB, file %d MiB verified", windows, bytesMoved[0]>>20, bytesMoved[1]>>20)
			}
		})
	}
}

// stress writes and verifies a namespace for a time, and returns the number of bytes.
func (l *nvmetLab) stress(t *testing.T, c *host.Controller, id uint32, d time.Duration) (moved uint64) {
	t.Helper()
	ns, err := c.Namespace(t.Context(), id)
	fatal(t, err)
	const workers, part = 64, nvmetSize / 64
	m, err := c.Register(make([]byte, 2*nvmetSize))
	fatal(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range workers {
		all.Go(func() {
			r := rand.NewChaCha8([32]byte{byte(i), byte(id)})
			own := m.Bytes()[2*i*part : 2*(i+1)*part]
			n := uint64(0)
			for end := time.Now().Add(d); time.Now().Before(end); {
				at := int(r.Uint64()%(part/4096)) * 4096
				size := min((1+int(r.Uint64()%64))*4096, part-at)
				_, _ = r.Read(own[at : at+size])
				var err error
				if r.Uint64()%2 == 0 {
					if _, err = ns.WriteAt(own[at:at+size], int64(i*part+at)); err == nil {
						_, err = ns.ReadMemory(t.Context(), m, 2*i*part+part, size, int64(i*part+at))
					}
				} else {
					if _, err = ns.WriteMemory(t.Context(), m, 2*i*part+at, size, int64(i*part+at)); err == nil {
						_, err = ns.ReadAt(own[part:part+size], int64(i*part+at))
					}
				}
				if err != nil || !bytes.Equal(own[at:at+size], own[part:part+size]) {
					t.Errorf("worker %d: %d bytes at %d: %v", i, size, at, err)
					return
				}
				n += 2 * uint64(size)
			}
			mu.Lock()
			moved += n
			mu.Unlock()
		})
	}
	all.Wait()
	fatal(t, m.Close())
	return moved
}
