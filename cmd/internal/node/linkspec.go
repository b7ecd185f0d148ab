package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/link/vlan"
)

// LinkSpec is the value of --link, or one port of softrnic switch.
type LinkSpec struct {
	Medium string // "pipe", "tap", "packet", "stream", "shm" or "kernel"
	// Interface, segment, or address of the socket; "": package kernel chooses the interface.
	name         string
	listen       bool // on the socket
	bridge       string
	interfaceMAC bool
	plain        bool // without offloads
	wait         link.Wait
	queues       int // 0: one
	vlan         int // 0: none
}

const linkForms = "pipe, shm[:NAME], stream:PATH[,listen], tap:NAME[,bridge=BRIDGE][,offloads=off] or " +
	"packet:INTERFACE[,mac=interface], the last two with [,wait=adaptive|event|poll][,queues=N]; all of these with [,vlan=ID]; or " +
	"kernel[:INTERFACE]"

// defaultSegment is the name of the segment of --link shm.
const defaultSegment = "default"

// linkWaits are the values of wait=.
var linkWaits = map[string]link.Wait{"adaptive": link.WaitAdaptive, "event": link.WaitEvent, "poll": link.WaitPoll}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *LinkSpec) UnmarshalText(text []byte) error {
	main, rest, _ := strings.Cut(string(text), ",")
	medium, name, _ := strings.Cut(main, ":")
	*s = LinkSpec{Medium: medium, name: name}
	named := slices.Contains([]string{"tap", "packet", "stream", "shm", "kernel"}, medium) && name != ""
	switch {
	case medium == "shm" && main == "shm":
		s.name = defaultSegment
	case main == "kernel": // package kernel chooses the interface
	case medium == "pipe" && name == "", named:
	default:
		return fmt.Errorf("%q is not a link: must be %s", text, linkForms)
	}
	for opt := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(opt, "=")
		switch {
		case rest == "":
		case medium == "stream" && opt == "listen":
			s.listen = true
		case medium == "tap" && key == "bridge" && value != "":
			s.bridge = value
		case medium == "tap" && key == "offloads" && value == "off":
			s.plain = true
		case medium == "packet" && key == "mac" && value == "interface":
			s.interfaceMAC = true
		case s.ofKernel() && key == "wait":
			wait, ok := linkWaits[value]
			if !ok {
				return fmt.Errorf("%q: wait=%s: must be adaptive, event or poll", text, value)
			}
			s.wait = wait
		case s.ofKernel() && key == "queues":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > tap.MaxQueues {
				return fmt.Errorf("%q: queues=%s: must be 1 to %d", text, value, tap.MaxQueues)
			}
			s.queues = n
		case medium == "kernel":
			return fmt.Errorf("%q: kernel takes no options, and there is no %s: its packets leave from the machine's own interface as "+
				"they are there", text, key)
		case key == "vlan":
			id, err := strconv.Atoi(value)
			if err != nil || id < 1 || id > vlan.MaxID {
				return fmt.Errorf("%q: vlan=%s: must be 1 to %d", text, value, vlan.MaxID)
			}
			s.vlan = id
		default:
			return fmt.Errorf("%q has an unknown option %q: must be %s", text, opt, linkForms)
		}
	}
	return nil
}

// Listens returns the address of a socket to listen on.
func (s *LinkSpec) Listens() (address string, ok bool) { return s.name, s.listen }

// Interface returns the name of the machine's interface that the link is on, or an error if there
// is none.
func (s *LinkSpec) Interface() (string, error) {
	if !s.ofKernel() {
		return "", fmt.Errorf("%s has no interface of this machine: use packet:INTERFACE or tap:NAME", s.Medium)
	}
	return s.name, nil
}

// CheckPort returns an error if the link cannot be a port of a switch.
func (s *LinkSpec) CheckPort() error {
	switch {
	case s.Medium == "pipe":
		return errors.New("a pipe is within one process: use stream:PATH, shm or tap:NAME")
	case s.Medium == "kernel":
		return errors.New("the machine's own sockets carry no Ethernet frames: use stream:PATH, shm or tap:NAME")
	case s.Medium == "packet":
		return fmt.Errorf("%s:%s forwards frames to one address only: use stream:PATH, shm or tap:NAME", s.Medium, s.name)
	case s.vlan != 0:
		return fmt.Errorf("vlan=%d: a switch passes tags on as they are: leave it out", s.vlan)
	}
	return nil
}

// OpenPort opens a link as a port of a switch. If mtu is 0, the medium chooses the MTU. A stream
// then accepts frames of any length.
func (s *LinkSpec) OpenPort(mtu int) (link.Link, error) {
	switch s.Medium {
	case "stream":
		mtu = cmp.Or(mtu, link.MaxSuperframe)
	case "shm":
		return s.openShm(nil, mtu, &shm.Config{Switch: true})
	}
	return s.open(nil, nil, mtu)
}

// ofKernel reports whether the link is an interface of the kernel.
func (s *LinkSpec) ofKernel() bool { return s.Medium == "tap" || s.Medium == "packet" }

// open opens the medium. lan is the switch of a pipe, or nil for a new switch. If mac is nil or mtu
// is 0, the medium chooses it.
func (s *LinkSpec) open(lan *pipe.Switch, mac net.HardwareAddr, mtu int) (link.Link, error) {
	switch s.Medium {
	case "tap":
		return opened(tap.Open(s.name, &tap.Config{MTU: mtu, MAC: mac, Bridge: s.bridge, NoOffloads: s.plain, Wait: s.wait,
			Queues: s.queues}))
	case "packet":
		return opened(packet.Open(s.name, &packet.Config{MAC: mac, InterfaceMAC: s.interfaceMAC, Wait: s.wait, Queues: s.queues}))
	case "stream":
		return opened(stream.Open(s.name, &stream.Config{MTU: mtu, MAC: mac, Listening: s.listen}))
	}
	return openPipe(lan, mac, mtu)
}

func openPipe(lan *pipe.Switch, mac net.HardwareAddr, mtu int) (link.Link, error) {
	if lan == nil {
		var err error
		if lan, err = pipe.New(&pipe.Config{MTU: mtu}); err != nil {
			return nil, err
		}
	}
	if mac == nil {
		return lan.Port(), nil
	}
	return opened(lan.PortWithMAC(mac))
}

// opened returns a nil Link on an error, not one that holds a nil pointer.
func opened[L link.Link](l L, err error) (link.Link, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (s *LinkSpec) openShm(mac net.HardwareAddr, mtu int, cfg *shm.Config) (*shm.Link, error) {
	cfg.MAC, cfg.MTU = mac, mtu
	return shm.Open(s.name, cfg)
}

// OpenRaw opens the link for a program that sends and receives raw frames at addr. lan is the
// switch of a pipe.
func (s *LinkSpec) OpenRaw(lan *pipe.Switch, addr netip.Addr, mtu int) (link.Link, error) {
	mac := macFor(addr)
	switch {
	case s.Medium == "kernel":
		return nil, errors.New("--link kernel: the machine's own sockets carry no Ethernet frames: use shm, stream:PATH, tap:NAME or " +
			"packet:INTERFACE")
	case s.interfaceMAC:
		mac = nil
	}
	var l link.Link
	var err error
	if s.Medium == "shm" {
		l, err = s.openShm(mac, mtu, &shm.Config{Claims: []string{addr.String()}})
	} else {
		l, err = s.open(lan, mac, mtu)
	}
	if err != nil || s.vlan == 0 {
		return l, err
	}
	tagged, err := vlan.New(l, s.vlan)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return tagged, nil
}
