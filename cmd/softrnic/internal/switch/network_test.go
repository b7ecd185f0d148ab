package ethswitch

import (
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
)

// wire is one end of a wire without a delay.
type wire struct {
	other *wire
	mac   net.HardwareAddr
	recv  link.Receiver
	at    []time.Duration // of what came but probes, without a receiver
	began time.Time
	state link.State
	watch func()
}

func newWire(mac byte) (host, end *wire) {
	host, end = &wire{mac: net.HardwareAddr{2, 0, 0, 0, 0, mac}}, &wire{mac: net.HardwareAddr{2, 0, 0, 0, 1, mac}}
	host.other, end.other, host.began = end, host, time.Now()
	return host, end
}

func (w *wire) Name() string              { return "wire" }
func (w *wire) MAC() net.HardwareAddr     { return w.mac }
func (w *wire) MTU() int                  { return link.MaxSuperframe }
func (w *wire) Offloads() link.Offloads   { return link.Offloads{} }
func (w *wire) Attach(recv link.Receiver) { w.recv = recv }
func (w *wire) State() link.State         { return w.state }
func (w *wire) Watch(f func())            { w.watch = f }
func (w *wire) Close() error              { return nil }

func (w *wire) Write(frames []link.Frame) (int, error) {
	if o := w.other; o.recv != nil {
		o.recv(frames)
	} else {
		for i := range frames {
			if binary.BigEndian.Uint16(frames[i].Data[12:]) != probeType {
				o.at = append(o.at, time.Since(o.began))
			}
		}
	}
	return len(frames), nil
}

// newNetworked makes a switch with a network, and a host at each of n ports.
func newNetworked(t *testing.T, cfg *fabric.Config, n int) (*Switch, []*wire) {
	t.Helper()
	f, err := fabric.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := New(slog.New(slog.DiscardHandler), f)
	var hosts []*wire
	for i := range n {
		h, end := newWire(byte(i))
		if err := s.Add(end); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	return s, hosts
}

// TestNetworkTimes: frames take the time of the network's cables. Two that meet wait for each
// other. Frames to all take it too.
func TestNetworkTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hosts := newNetworked(t, &fabric.Config{Topology: fabric.Star(3), Link: fabric.Link{Rate: 8e6, Delay: time.Millisecond}}, 3)
		a, b, c := hosts[0], hosts[1], hosts[2]
		one := time.Duration(976+24) * time.Microsecond
		send := func(h *wire, f link.Frame) {
			if _, err := h.Write([]link.Frame{f}); err != nil {
				t.Fatal(err)
			}
		}
		send(c, linktest.Plain(broadcast, c.MAC(), 976-link.EthernetHeaderLen, "here is c"))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if want := 2*one + 2*time.Millisecond; len(a.at) != 1 || a.at[0] != want || len(b.at) != 1 || b.at[0] != want {
			t.Errorf("to all: %v and %v, want %v", a.at, b.at, want)
		}
		f := linktest.Plain(c.MAC(), a.MAC(), 976-link.EthernetHeaderLen, "to c")
		send(a, f)
		send(b, f)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		first := 100*time.Millisecond + 2*one + 2*time.Millisecond
		if len(c.at) != 2 || c.at[0] != first || c.at[1] != first+one {
			t.Errorf("to c: %v, want %v and %v", c.at, first, first+one)
		}
		if len(a.at) != 1 || len(b.at) != 1 {
			t.Error("frames to c came elsewhere")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestNetworkMarks: the packets of two superframes to one host wait in its queue, which marks them.
// What is too long for the network is refused. The metrics say so.
func TestNetworkMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hosts := newNetworked(t, &fabric.Config{Topology: fabric.Star(3), MTU: 1500, Link: fabric.Link{Rate: 8e6},
			Switch: fabric.Switch{ECN: fabric.ECN{Min: 1, Max: 1, P: 1}}}, 3)
		a, b, c := hosts[0], hosts[1], hosts[2]
		tooLong := linktest.Plain(b.MAC(), a.MAC(), 4000, "")
		if _, err := b.Write([]link.Frame{linktest.Plain(broadcast, b.MAC(), 50, "here is b")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		const segments = 8
		for _, h := range []*wire{a, c} {
			f := linktest.Superframe(b.MAC(), h.MAC(), false, segments, 1000)
			f.Data[15] |= 2 // ECT(0)
			if _, err := h.Write([]link.Frame{f, tooLong}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(b.at) != 2*segments {
			t.Errorf("%d packets, want %d", len(b.at), 2*segments)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(s)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[f.GetName()+" "+m.GetLabel()[len(m.GetLabel())-1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
		if n := got["softrnic_switch_network_marked_packets_total host1 switch"]; n < segments/2 || n >= 2*segments {
			t.Errorf("%v packets are marked", n)
		}
		if n := got["softrnic_switch_network_packets_total host1 switch"]; n != 2*segments {
			t.Errorf("%v packets in the metrics, want %d", n, 2*segments)
		}
		if n := got["softrnic_switch_refused_frames_total 1 wire"]; n != 1 {
			t.Errorf("%v frames are refused, want 1", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestNetworkPlaces: there are as many ports as hosts. The place of a port that goes is free again.
func TestNetworkPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hosts := newNetworked(t, &fabric.Config{Topology: fabric.Star(2)}, 2)
		_, third := newWire(3)
		if err := s.Add(third); err == nil || !strings.Contains(err.Error(), "2 hosts") {
			t.Errorf("a third port: %v", err)
		}
		gone := hosts[0].other
		gone.state = link.Removed
		gone.watch()
		synctest.Wait()
		if err := s.Add(third); err != nil {
			t.Errorf("after one is gone: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowNetwork: RDMA between two nodes takes the time that the network's slowest cable needs.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "lab.toml")
	if err := os.WriteFile(file, []byte(`
[topology]
kind = "dumbbell"
hosts = 1
uplink_rate = "50M"
[switch]
ecn = { min = "20kB", max = "20kB" }
[[workload]]
kind = "permutation"
size = "1MB"
`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "lan")
	sw := program.Start(t, nil, "switch --fabric "+file+" stream:"+path+",listen")
	sw.Await(t, &sw.Err, "listening")
	sw.Await(t, &sw.Err, "workload")
	on := " --link stream:" + path + " --mtu 4200"
	server := program.Start(t, nil, "serve --path-mtu 4096 --addr 10.0.0.9/24"+on)
	server.Await(t, &server.Err, "serving")
	const size, n = 65536, 20
	args := "pingpong rc --path-mtu 4096 --size 65536 -n 20 --addr 10.0.0.8/24 10.0.0.9" + on
	began := time.Now()
	if code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields(args)...); code != 0 {
		t.Errorf("%s: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	if least := 2 * n * size * 8 * time.Second / 50e6; time.Since(began) < least {
		t.Errorf("it took %v, which 50 Mbit/s do not allow: at least %v", time.Since(began), least)
	}
	server.Stop()
	server.Wait(t)
	sw.Stop()
	if code := sw.Wait(t); code != 0 {
		t.Errorf("the switch ends with %d: %s", code, &sw.Err)
	}
}
