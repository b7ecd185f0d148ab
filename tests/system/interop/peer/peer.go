//go:build linux

// Package peer boots Linux machines with the kernel's own software RDMA devices, as peers of tests.
//
// A peer is the kernel of a Debian release, [gate.Suite], under qemu with rxe0 (RoCEv2) on its
// interface eth0, the module siw (iWARP), and perftest, rdmacm-utils, ibverbs-utils, pyverbs,
// open-iscsi and tcpdump. A disk has programs of storage, which [Peer.MountStorage] makes
// available. It runs in software emulation if KVM does not work: do not measure times on it. Its
// interface is a port of the bridge of a [Netns]. Commands do not use the network, so they work
// even if the network does not.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
)

const qemu = "qemu-system-x86_64"

// Config is the configuration of a peer.
type Config struct {
	// ID, 2 to 99, determines the addresses 10.77.0.ID and fd77::ID (in decimal digits).
	ID int
	// MTU of the interface, bytes; 0 means 1500. Peers of the same MTU share a namespace. Path MTU
	// 4096 needs 4200.
	MTU int
	// Stream puts the interface on a unix socket, Peer.Socket, and not on the namespace's bridge.
	Stream bool
}

// whole returns the configuration with the default MTU filled in.
func (c Config) whole() Config {
	if c.MTU == 0 {
		c.MTU = 1500
	}
	return c
}

// Peer is one running machine.
type Peer struct {
	Config
	Netns *Netns
	// Kernel is the machine's row in the table of kernels, and Versions are its versions of Linux and
	// rdma-core.
	Kernel   Kernel
	Versions string

	client  *control.Client
	console string        // file
	kill    func() error  // qemu
	gone    chan struct{} // closed when qemu has ended
}

// Addr4 is the peer's IPv4 address, in 10.77.0.0/24.
func (p *Peer) Addr4() netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(p.ID)}) }

// Addr6 is the peer's IPv6 address, in fd77::/64.
func (p *Peer) Addr6() netip.Addr { return netip.MustParseAddr("fd77::" + strconv.Itoa(p.ID)) }

// MAC is the Ethernet address of the peer's interface.
func (p *Peer) MAC() net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, byte(p.ID)} }

// Socket is the address on which QEMU listens for the other end of the interface's cable, with
// Config.Stream. Every user may connect. After that end has closed, another may connect.
func (p *Peer) Socket() string { return fmt.Sprintf("%s/peer%d.net", p.Netns.Dir, p.ID) }

// boot starts the machine and waits until it accepts commands.
func boot(ctx context.Context, cfg Config, img *image, netns *Netns) (*Peer, error) {
	name := fmt.Sprintf("peer%d", cfg.ID)
	p := &Peer{
		Config:   cfg,
		Netns:    netns,
		Kernel:   img.Kernel,
		Versions: img.versions,
		console:  filepath.Join(netns.Dir, name+".console"),
		gone:     make(chan struct{}),
	}
	socket := filepath.Join(netns.Dir, name+".control")
	_ = os.Remove(socket) // of a peer that was killed
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	defer listener.Close()

	netdev := "tap,id=net,script=no,downscript=no,ifname=" + name
	if cfg.Stream {
		_ = os.Remove(p.Socket())
		netdev = "stream,id=net,server=on,addr.type=unix,addr.path=" + p.Socket()
	} else {
		for _, args := range []string{
			"tuntap add " + name + " mode tap",
			fmt.Sprintf("link set %s mtu %d master %s up", name, cfg.MTU, netns.Bridge),
		} {
			if err := netns.ip(args); err != nil {
				return nil, err
			}
		}
	}
	// On a busy machine, an emulated timer is late, and the kernel would take it for a broken one.
	const noTimerCheck = "no_timer_check"
	accel := "tcg,thread=multi"
	if img.kvm {
		accel = "kvm"
	}
	// Neighbours are resolved from the link-local address. For a second or two, until duplicate
	// address detection ends, the kernel resolves none, and a QP to an IPv6 address cannot be
	// connected.
	const noDAD = "sysctl.net.ipv6.conf.default.accept_dad=0"
	args := []string{
		"-accel", accel, "-cpu", "max", "-smp", "2", "-m", "1536",
		"-nodefaults", "-vga", "none", "-display", "none", "-no-reboot",
		"-kernel", img.kernel(), "-initrd", img.initramfs(),
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 "+noDAD+" "+noTimerCheck+" peer.mtu=%d peer.addr4=%v/24 "+
			"peer.addr6=%v/64",
			cfg.MTU, p.Addr4(), p.Addr6()),
		"-serial", "file:" + p.console,
		"-drive", "if=virtio,format=raw,readonly=on,file=" + img.disk(),
		"-netdev", netdev,
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net,mac=%v,host_mtu=%d", p.MAC(), cfg.MTU),
		"-device", "virtio-serial", "-chardev", "socket,id=control,path=" + socket,
		"-device", "virtserialport,chardev=control,name=softrnic.control",
	}
	cmd := netns.Command(context.Background(), qemu, args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.kill = cmd.Process.Kill
	go func() {
		_ = cmd.Wait()
		_ = listener.Close()
		close(p.gone)
	}()

	fail := func(err error) (*Peer, error) {
		_ = p.kill()
		<-p.gone
		_ = netns.ip("link del " + name)
		return nil, fmt.Errorf("peer %d did not come up: %w\nqemu: %s\nconsole:\n%s", cfg.ID, err, said.String(), p.Console())
	}
	conn, err := listener.Accept()
	if err != nil {
		return fail(err)
	}
	p.client = control.NewClient(conn)
	if err := p.client.Ready(ctx); err != nil {
		return fail(err)
	}
	if cfg.Stream {
		if err := errors.Join(os.Chmod(p.Socket(), 0o777), os.Chmod(netns.Dir, 0o711)); err != nil {
			return fail(err)
		}
	}
	return p, nil
}

// ended reports whether the machine has ended.
func (p *Peer) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Console returns the end of the peer's kernel log.
func (p *Peer) Console() string {
	b, err := os.ReadFile(p.console)
	if err != nil {
		return err.Error()
	}
	return tail(b, 20)
}

// Start starts a shell command in the peer.
func (p *Peer) Start(command string) (*control.Process, error) { return p.client.Start(command) }

// Exec runs a shell command in the peer; output is its standard output and standard error. If ctx
// ends first, the command is killed.
func (p *Peer) Exec(ctx context.Context, command string) (output string, code int, err error) {
	process, err := p.Start(command)
	if err != nil {
		return "", -1, err
	}
	code, err = process.Wait(ctx)
	if err != nil {
		_ = process.Kill()
		err = fmt.Errorf("peer %d: %s: %w", p.ID, command, err)
	}
	return process.Output(), code, err
}

// Run is Exec for a command that must succeed.
func (p *Peer) Run(t testing.TB, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	output, code, err := p.Exec(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 {
		t.Fatalf("peer %d: %s: exit status %d\n%s", p.ID, command, code, output)
	}
	return output
}

// MountStorage makes nvme-cli, fio, e2fsprogs, xfsprogs and nfs-common available: a shell command
// finds them after ". /storage.sh".
func (p *Peer) MountStorage(t testing.TB) {
	t.Helper()
	p.Run(t, "[ -e /storage.sh ] || { set -e; modprobe -a virtio_blk ext4; mkdir -p /storage; mount -t ext4 -o ro /dev/vda /storage; "+
		"lib=/storage/usr/lib/x86_64-linux-gnu; "+
		"echo export PATH=$PATH:/storage/usr/bin:/storage/usr/sbin LD_LIBRARY_PATH=$lib:$lib/ceph >/storage.sh; }")
}

// Put writes a file in the peer.
func (p *Peer) Put(ctx context.Context, path string, data []byte) error {
	process, err := p.Start("cat >'" + path + "'")
	if err != nil {
		return err
	}
	if _, err := process.Write(data); err != nil {
		return err
	}
	if err := process.Close(); err != nil {
		return err
	}
	code, err := process.Wait(ctx)
	if err == nil && code != 0 {
		err = errors.New(strings.TrimSpace(process.Output()))
	}
	if err != nil {
		return fmt.Errorf("peer %d: write %s: %w", p.ID, path, err)
	}
	return nil
}

// Kill powers the peer off. The next Boot of its Config starts another.
func (p *Peer) Kill() {
	forget(p)
	_ = p.kill()
	<-p.gone
	_ = p.client.Close()
	// The TAP is persistent.
	_ = p.Netns.ip(fmt.Sprintf("link del peer%d", p.ID))
}
