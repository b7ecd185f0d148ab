package rdmatransport_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// streamsOnly is a host whose stack has TCP, but no ports for RoCE packets and raw frames.
type streamsOnly struct{ *netstack.Host }

func (h streamsOnly) NICs() (nics []stack.NIC) {
	for _, n := range h.Host.NICs() {
		nics = append(nics, portless{n})
	}
	return nics
}

type portless struct{ stack.NIC }

func (portless) Datagrams() stack.DatagramPort { return nil }
func (portless) Frames() stack.FramePort       { return nil }

// TestStackWithoutPorts checks a stack that has streams only. iWARP works; RoCE and raw packets
// return errors with the reason.
func TestStackWithoutPorts(t *testing.T) {
	var lan pipe.Switch
	var devs []*verbs.Device
	for _, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		host := must(netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}}))(t)
		dev := must(rdmatransport.Open(streamsOnly{host}, nil))(t)
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
			host.Close()
		})
		devs = append(devs, dev)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrNotSupported) || !errors.Is(err, errors.ErrUnsupported) ||
			!strings.Contains(err.Error(), "network stack carries no") {
			t.Errorf("%s: %v, want ErrNotSupported with the reason", what, err)
		}
	}
	pd := must(devs[0].AllocPD())(t)
	cq := must(devs[0].CreateCQ(4, nil))(t)
	_, err := pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1,
		GRH: verbs.GRH{DGID: must(devs[1].QueryGID(1, 1))(t).GID, SGIDIndex: 1}})
	refused("an address handle", err)
	_, err = pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RawPacket, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	refused("a raw packet QP", err)
	if a := devs[0].QueryDevice(); a.MaxRawEthyQP != 0 || a.DeviceCapFlags&(verbs.DeviceRawMulti|verbs.DeviceManagedFlowSteering) != 0 {
		t.Errorf("%d raw packet QPs, flags %v", a.MaxRawEthyQP, a.DeviceCapFlags)
	}
	for _, e := range must(devs[0].GIDTable(1))(t) {
		if e.Type != verbs.GIDTypeRoCEv2 {
			t.Errorf("GID %d is of %v, which is Ethernet frames", e.Index, e.Type)
		}
	}
	for _, err := range []error{cq.Close(), pd.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		l := must(rdmacm.Listen(devs[1], ":7471", &rdmacm.Config{Transport: transport}))(t)
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			c, _ := l.Accept(t.Context())
			accepted <- c
		}()
		c, err := rdmacm.Dial(t.Context(), devs[0], "10.0.0.2:7471", &rdmacm.Config{Transport: transport})
		switch transport {
		case verbs.RoCEv2:
			refused("connection over RoCE", err)
		case verbs.IWARP:
			if err != nil {
				t.Fatal(err)
			}
			select {
			case s := <-accepted:
				if err := errors.Join(c.Close(), s.Close()); err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("no connection was accepted")
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
