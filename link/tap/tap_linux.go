package tap

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/ifstate"
	"github.com/softrnic/softrnic/link/internal/vnet"
)

const device = "/dev/net/tun"

func open(c *config) (*Link, error) {
	existing, err := c.findExisting()
	if err != nil {
		return nil, err
	}
	var fds []int
	var offloads link.Offloads
	for len(fds) < c.Queues && !c.NoOffloads && err == nil {
		var fd int
		if fd, offloads, err = c.attach(); err == nil {
			fds = append(fds, fd)
		}
	}
	bare := c.NoOffloads || errors.Is(err, errNoHeader) && c.Queues == 1
	if bare {
		var fd int
		if fd, err = c.attachBare(); err == nil {
			fds = append(fds, fd)
		}
	}
	release := func() (err error) {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	if existing {
		err = c.checkMatchesConfig()
	} else {
		err = c.configure()
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	carrier, err := ifstate.New(c.name, true)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tap %w", err), release())
	}
	var conn *vnet.Conn
	if bare {
		conn, err = vnet.NewBareConn(fds[0], c.name, carrier.MTU, c.Wait)
	} else {
		conn, err = vnet.NewConn(fds, c.name, carrier.MTU, offloads, c.Wait)
	}
	if err != nil {
		carrier.Close()
		return nil, err
	}
	return &Link{name: c.name, mac: c.MAC, carrier: carrier, offloads: offloads, medium: conn, poller: conn}, nil
}

// findExisting reports whether a TAP interface of this name exists. It returns an error if another
// kind of interface has the name, because the kernel would return only EINVAL.
func (c *config) findExisting() (bool, error) {
	have, err := netlink.LinkByName(c.name)
	if err != nil {
		return false, nil // Open creates it
	}
	if t, ok := have.(*netlink.Tuntap); !ok || t.Mode != netlink.TUNTAP_MODE_TAP {
		kind := have.Type()
		if ok {
			kind = "tun"
		}
		return false, fmt.Errorf("tap %s: the name is taken by an interface of type %s: choose another name, "+
			"or use package packet on it", c.name, kind)
	}
	return true, nil
}

var errNoHeader = errors.New("kernel without IFF_VNET_HDR")

// attach opens the device with a virtio-net header in front of each frame.
func (c *config) attach() (fd int, o link.Offloads, err error) {
	fd, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, o, c.explain(&os.PathError{Op: "open", Path: device, Err: err})
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if features, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES); err != nil || features&unix.IFF_VNET_HDR == 0 {
		return -1, o, errNoHeader
	}
	ifr, err := unix.NewIfreq(c.name)
	if err != nil {
		return -1, o, fmt.Errorf("tap %s: %w", c.name, err)
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if c.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	ifr.SetUint16(flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	if err == unix.EINVAL && c.Queues > 1 {
		return -1, o, fmt.Errorf("tap %s: the interface has one queue (%w): have root create it with multi_queue, or use Queues(1)",
			c.name, err)
	}
	if err == unix.EINVAL { // the interface was created with multi_queue
		ifr.SetUint16(flags | unix.IFF_MULTI_QUEUE)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		return -1, o, c.explain(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnet.HeaderLen); err != nil {
		return -1, o, fmt.Errorf("tap %s: virtio-net header of %d bytes: %w", c.name, vnet.HeaderLen, err)
	}
	return fd, setOffloads(fd), nil
}

// attachBare opens the device without a virtio-net header. The descriptor is duplicated to remove
// it from Go's network poller, which would wake a thread for every frame, even while an application
// polls.
func (c *config) attachBare() (fd int, err error) {
	ifce, err := water.New(water.Config{DeviceType: water.TAP, PlatformSpecificParams: water.PlatformSpecificParams{Name: c.name}})
	if err != nil {
		return -1, c.explain(err)
	}
	defer ifce.Close()
	file, ok := ifce.ReadWriteCloser.(*os.File)
	if !ok {
		return -1, fmt.Errorf("tap %s: %T is not a file", c.name, ifce.ReadWriteCloser)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("tap %s: %w", c.name, err)
	}
	failed := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return -1, fmt.Errorf("tap %s: duplicate the descriptor: %w", c.name, err)
	}
	return fd, nil
}

// setOffloads enables all offloads that the kernel has. They apply in both directions: a kernel
// that delivers UDP superframes (6.2 and later) also accepts them.
func setOffloads(fd int) link.Offloads {
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|unix.TUN_F_USO4|unix.TUN_F_USO6) == nil {
		return link.Offloads{USO: true, TSO: true, Checksum: true}
	}
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp) == nil {
		return link.Offloads{TSO: true, Checksum: true}
	}
	return link.Offloads{}
}

// explain adds advice to an error of opening or attaching.
func (c *config) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("tap %s: no %s (%w): have root load it: modprobe tun; in a container: --device %s",
			c.name, device, err, device)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("tap %s: in use by another program (%w): stop that, or choose another name", c.name, err)
	case errors.Is(err, os.ErrPermission) && unix.Access(device, unix.R_OK|unix.W_OK) != nil:
		return fmt.Errorf("tap %s: no permission (%w): run as root, or have root let every user open it: chmod 666 %s",
			c.name, err, device)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("tap %s: no permission (%w): run as root, or have root make one: "+
			"ip tuntap add dev %s mode tap user %d && ip link set dev %s up", c.name, err, c.name, os.Getuid(), c.name)
	}
	return fmt.Errorf("tap %s: %w", c.name, err)
}

// checkMatchesConfig returns an error if an existing interface does not match the options. It
// modifies nothing. Other programs may rely on the interface's state, and after a crash no program
// would restore it.
func (c *config) checkMatchesConfig() error {
	have, err := netlink.LinkByName(c.name)
	if err != nil {
		return fmt.Errorf("tap %s: %w", c.name, err)
	}
	at := have.Attrs()
	var is, set []string
	if c.MTU != 0 && at.MTU != c.MTU {
		is, set = append(is, fmt.Sprintf("has MTU %d", at.MTU)), append(set, fmt.Sprintf("mtu %d", c.MTU))
	}
	if c.Bridge != "" {
		br, err := c.findBridge()
		if err != nil {
			return err
		}
		if at.MasterIndex != br.Attrs().Index {
			is, set = append(is, inMaster(at.MasterIndex)), append(set, "master "+c.Bridge)
		}
	}
	if at.RawFlags&unix.IFF_UP == 0 {
		is, set = append(is, "is down"), append(set, "up")
	}
	if len(is) > 0 {
		return fmt.Errorf("tap %s: the interface existed before, so it is not modified; but it %s: "+
			"first run, as root: ip link set dev %s %s",
			c.name, joinAnd(is), c.name, strings.Join(set, " "))
	}
	return c.checkUsable(at)
}

// joinAnd returns "a", "a and b" or "a, b and c".
func joinAnd(parts []string) string {
	if last := len(parts) - 1; last > 0 {
		return strings.Join(parts[:last], ", ") + " and " + parts[last]
	}
	return parts[0]
}

// inMaster describes the bridge that an interface is in.
func inMaster(index int) string {
	if index == 0 {
		return "is in no bridge"
	}
	master, err := netlink.LinkByIndex(index)
	if err != nil {
		return "is in another bridge"
	}
	return fmt.Sprintf("is in %s %s", master.Type(), master.Attrs().Name)
}

// configure applies the options to an interface that Open has created, and brings it up.
func (c *config) configure() error {
	have, err := netlink.LinkByName(c.name)
	if err != nil {
		return fmt.Errorf("tap %s: %w", c.name, err)
	}
	if c.MTU != 0 {
		if err := netlink.LinkSetMTU(have, c.MTU); err != nil {
			return fmt.Errorf("tap %s: set MTU %d: %w", c.name, c.MTU, err)
		}
	}
	if c.Bridge != "" {
		br, err := c.findBridge()
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(have, br); err != nil {
			return fmt.Errorf("tap %s: put it into bridge %s: %w", c.name, c.Bridge, err)
		}
	}
	if err := netlink.LinkSetUp(have); err != nil {
		return fmt.Errorf("tap %s: bring it up: %w", c.name, err)
	}
	if have, err = netlink.LinkByName(c.name); err != nil {
		return fmt.Errorf("tap %s: %w", c.name, err)
	}
	return c.checkUsable(have.Attrs())
}

// checkUsable returns an error for an interface that has the host's MAC, or an MTU that is too
// small.
func (c *config) checkUsable(at *netlink.LinkAttrs) error {
	if at.HardwareAddr.String() == c.MAC.String() {
		return fmt.Errorf("tap %s: MAC %v is the interface's own: the host behind it needs another", c.name, c.MAC)
	}
	if at.MTU < link.MinMTU {
		return fmt.Errorf("tap %s: MTU is %d, at least %d is needed: first run, as root: ip link set dev %s mtu 1500",
			c.name, at.MTU, link.MinMTU, c.name)
	}
	return nil
}

func (c *config) findBridge() (netlink.Link, error) {
	br, err := netlink.LinkByName(c.Bridge)
	if err != nil {
		return nil, fmt.Errorf("tap %s: no bridge %s (%w): have root make it: ip link add %s type bridge && ip link set dev %s up",
			c.name, c.Bridge, err, c.Bridge, c.Bridge)
	}
	if br.Type() != "bridge" {
		return nil, fmt.Errorf("tap %s: %s is an interface of type %s: name a bridge", c.name, c.Bridge, br.Type())
	}
	return br, nil
}
