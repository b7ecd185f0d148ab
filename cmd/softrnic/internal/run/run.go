// Package run is `softrnic run`: it runs a program for libibverbs and librdmacm with the drop-in
// libraries.
package run

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command runs a program.
type Command struct {
	dropin.Settings // of the devices: a flag is added there
	// The flags of softrnic run itself.
	Libs    string        `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside the command softrnic, or in ../lib/softrnic from there."`
	Sysfs   string        `enum:"auto,on,preload,off" default:"auto" placeholder:"MODE" help:"How the program sees its devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, where UCX and pyverbs look: on: in a mount namespace; preload: by a library before the C library; off: not at all; auto: on if this user may create a mount namespace without a loss of rights, otherwise preload. The files follow the devices while the program runs. iproute2's rdma sees the devices, too: with on, a script with a preloaded library takes its place. Default: auto."`
	Sockets bool          `help:"Carry the program's TCP connections over RDMA, as rsockets, if the peer supports these: another softrnic run --sockets, or a program with librspreload.so. Other connections use TCP. The program gets no devices."`
	Direct  bool          `name:"sockets-direct" help:"With --sockets: connections between two programs of this machine and user, both of which run with --sockets-direct, are made over RDMA, but their data goes through a Unix socket between the programs: faster than TCP, but not through the devices and what is set for these."`
	Wait    time.Duration `name:"sockets-wait" default:"3s" placeholder:"TIME" help:"With --sockets: the time for a host to answer over RDMA. Without an answer, TCP is used, and RDMA is not tried again for a minute. Default: 3s."`
	Metrics string        `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at http://HOST:PORT/metrics, an address of the machine, for each process of the program that uses RDMA. The label pid distinguishes the processes; one device has both protocols of a rail."`

	Netlink  uint32 `hidden:"" help:"Answer requests of netlink on standard input for the socket with this port ID; for libsoftrnic-sysfs.so."`
	Tree     string `hidden:"" help:"With --netlink: the directory with sysfs. With --describe: the directory that was printed before; its ports are made as they are now."`
	Describe bool   `hidden:"" help:"Create the files of the devices, and print their directory; for libsoftrnic-sysfs.so."`

	Program []string `arg:"" optional:"" passthrough:"" help:"The program and its arguments."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The program is loaded with SoftRNIC's libibverbs.so.1 and librdmacm.so.1 instead of the system's. They have two devices, one for
RoCEv2 and one for iWARP. No privileges, hardware or kernel module are needed. Processes that the program starts have the devices too:
for example, softrnic run can start mpirun. It runs on Linux with glibc ` + dropin.OldestGlibc + ` or later, and not with musl.

  softrnic run -- ibv_devinfo
  softrnic run -- ib_write_bw                 in one terminal
  softrnic run -- ib_write_bw 127.0.0.1       in another

With --sockets, softrnic run owns the device and forwards the data of the program's TCP connections. A preloaded library asks it when the
program connects or listens. The program's sockets remain kernel sockets, so the program may fork, daemonize and wait with epoll. For a
nonblocking socket, connect returns EINPROGRESS, and the socket becomes writable when it is connected. If the host has no rsockets,
softrnic run forwards the connection over TCP. Programs that do not call the C library's connect and listen use TCP only: statically
linked programs, programs in Go, and io_uring. softrnic run ends when the program has ended, no socket listens, and all connections are
closed. --metrics then also has softrnic_sockets_connections, softrnic_sockets_accepted_connections_total,
softrnic_sockets_failed_connections_total and softrnic_sockets_bytes_total.

  softrnic run --sockets -- iperf3 -s
  softrnic run --sockets -- iperf3 -c 10.1.2.3      on another machine, with the first one's address

On one machine, --link kernel:lo makes 127.0.0.1 an address over RDMA:

  softrnic run --sockets --link kernel:lo -- iperf3 -s
  softrnic run --sockets --link kernel:lo -- iperf3 -c 127.0.0.1

The libraries can also be used without softrnic run. LD_LIBRARY_PATH then names their directory, with those of its libmlx5, libefa
and others that the machine lacks. The environment variables at the flags below replace the flags. A flag without a value is 1 or 0 in
the environment, and the values of a repeatable flag are separated by commas. A flag takes precedence over its variable. These variables
have no flag:

` + variables() + `
SOFTRNIC_CONFIG: A file with lines of these variables, such as SOFTRNIC_LINK=shm. The environment takes precedence. Empty lines and lines
that begin with # are ignored.

SOFTRNIC_DIRECTORY: A directory such as /tmp, below which the processes of a user find each other, instead of XDG_RUNTIME_DIR. It is not read
from a file. Default in containers: ` + dropin.ContainerDirectory + `.

There can be up to 8 rails, each with its own link, addresses and devices. SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE then have a
part for each rail, separated by semicolons. A single link is used by all rails. The numbers at the end of a single device name count up:

  SOFTRNIC_LINK=shm SOFTRNIC_ADDR="10.0.0.1/24;10.0.1.1/24" SOFTRNIC_DEVICE=mlx5_0, softrnic run -- ibv_devices

SOFTRNIC_CARD may also have a part for each rail; SOFTRNIC_GUID must, if there are several. Instead of the first three variables, each
rail may have one of its own, SOFTRNIC_RAIL_0 to SOFTRNIC_RAIL_7, as in a container: SOFTRNIC_RAIL_0="link=kernel:eth0;addr=10.0.0.1;device=mlx5_0,".`
}

// variables returns a paragraph for each variable that is no flag.
func variables() (text string) {
	for name, help := range dropin.VariablesOnly() {
		text += name + ": " + help + "\n\n"
	}
	return strings.TrimSuffix(text, "\n")
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 && !c.Describe && c.Netlink == 0 {
		return errors.New("no program: it follows --, as in softrnic run -- ibv_devinfo")
	}
	if c.Sockets && (c.Sysfs == "on" || c.Sysfs == "preload") {
		return fmt.Errorf("--sockets goes without --sysfs %s", c.Sysfs)
	}
	if c.Direct && !c.Sockets {
		return errors.New("--sockets-direct goes with --sockets")
	}
	if c.Wait <= 0 {
		return fmt.Errorf("--sockets-wait %v: must be more than 0", c.Wait)
	}
	// The program may change its directory.
	files := node.TLSFlags{TLS: c.TLS, TLSCA: c.TLSCA, TLSName: c.TLSName}
	files, err := files.Absolute()
	if err != nil {
		return err
	}
	c.TLS, c.TLSCA = files.TLS, files.TLSCA
	cfg, err := c.Complete(os.Getenv)
	switch {
	case err != nil || !c.Sockets:
		return err
	case len(cfg.Allow) > 0:
		return errors.New("--sockets goes without --allow: the program's sockets also take connections of other hosts, over TCP")
	case cfg.Secure != "" || cfg.TLS != "" || cfg.TLSCA != "":
		return errors.New("--sockets goes without --secure and --tls: hosts without rsockets would be reached over TCP, which is not encrypted")
	case len(cfg.Rails) > 1:
		return fmt.Errorf("--sockets has one rail: SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE describe %d", len(cfg.Rails))
	}
	return nil
}

// environment returns the program's environment, in which libraries in dirs come first.
func (c *Command) environment(dirs []string, command string) []string {
	s := c.Settings
	s.Command = command
	if c.Metrics != "" {
		s.Runner = os.Getpid()
	}
	set := maps.Collect(s.Variables())
	set["LD_LIBRARY_PATH"] = strings.Join(dirs, ":")
	return environ(set)
}

// environ returns this process's environment with some variables set. LD_PRELOAD and
// LD_LIBRARY_PATH are prepended to existing values.
func environ(set map[string]string) (env []string) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); set[name] == "" {
			env = append(env, e)
		}
	}
	for name, value := range set {
		if others := os.Getenv(name); others != "" && strings.HasPrefix(name, "LD_") {
			value += ":" + others
		}
		env = append(env, name+"="+value)
	}
	return env
}
