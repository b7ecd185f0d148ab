// Package run is `softrnic run`: it runs a program for libibverbs and librdmacm with the drop-in
// libraries.
package run

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command runs a program.
type Command struct {
	Link    string        `placeholder:"LINK" help:"The link of the devices, as --link of the other commands. Default: the machine's own addresses over its own UDP and TCP sockets, shared with other programs of this user. kernel:all creates devices on each interface with a global address; softrnic devinfo --link kernel:all shows them."`
	Addr    []node.CIDR   `sep:"none" placeholder:"CIDR" help:"Address of the devices, as --addr of the other commands; repeatable."`
	Shared  *bool         `negatable:"" help:"With --link kernel[:INTERFACE]: share the addresses with other programs of this user, which is the default. --no-shared: do not share them."`
	Device  string        `placeholder:"ROCE[,IWARP]" help:"Names of the RoCE and the iWARP device: mlx5_0,siw0. With a comma at the end there is no iWARP device. Default: softrnic0,softrnic0_iw."`
	Repeat  bool          `name:"selective-repeat" help:"RoCEv2: retransmit only lost packets if the peer is a SoftRNIC with this flag, as --selective-repeat of the other commands."`
	Card    string        `placeholder:"CARD" help:"Give the RoCE device the identity of a card, for programs and tools that expect one: PCI path and IDs, NUMA node, rate, and its driver's device names, without an iWARP device. connectx5, connectx6dx, connectx7, connectx8, bluefield3, bcm57508 or e810. It changes nothing else. Default: no card."`
	Speed   string        `placeholder:"GBPS" help:"The rate that the devices' ports report, in Gbit/s: 25, 100, 200, 400 … It does not change the rate of packets. Default: 40, or the card's."`
	Width   string        `placeholder:"LANES" help:"With --speed: the number of lanes that the ports report, 1, 2, 4, 8 or 12. Default: 4, or the next number that is possible with the rate."`
	Libs    string        `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside the command softrnic, or in ../lib/softrnic from there."`
	Sysfs   string        `enum:"auto,on,preload,off" default:"auto" placeholder:"MODE" help:"How the program sees its devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, where UCX and pyverbs look: on: in a mount namespace; preload: by a library before the C library; off: not at all; auto: on if this user may create a mount namespace without a loss of rights, otherwise preload. iproute2's rdma is answered with preload, and with on only as the program itself. Default: auto."`
	Sockets bool          `help:"Carry the program's TCP connections over RDMA, as rsockets, if the peer supports these: another softrnic run --sockets, or a program with librspreload.so. Other connections use TCP. The program gets no devices."`
	Wait    time.Duration `name:"sockets-wait" default:"3s" placeholder:"TIME" help:"With --sockets: the time for a host to answer over RDMA. Without an answer, TCP is used, and RDMA is not tried again for a minute. Default: 3s."`
	Log     *slog.Level   `name:"log-level" placeholder:"LEVEL" help:"The level of the libraries' log on stderr: debug, info, warn or error. Default: warn."`
	Top     bool          `help:"Let softrnic top of this user show the program's queue pairs."`
	Metrics string        `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at http://HOST:PORT/metrics, an address of the machine, for each process of the program that uses RDMA. The label pid distinguishes the processes; one device has both protocols of a rail."`
	Trace   string        `type:"path" placeholder:"FILE" help:"Append the events of the program's queue pairs to this file, as --trace of the other commands. If the file cannot be written, as on a full disk, the exit status is at least 1."`
	Capture string        `type:"path" placeholder:"FILE" help:"Write the packets of the program to this pcapng file, as --capture of the other commands. %p in the name is the process ID: a program with several processes needs it."`
	Impair  string        `placeholder:"SPEC" help:"Make the program's link bad, for example loss=1%, as --impair of the other commands. softrnic impair changes it while the program runs; with none, nothing is impaired until then."`

	Secure     string   `type:"path" placeholder:"FILE" help:"Encrypt and authenticate everything, as --secure of the other commands. A key is for one process at a time."`
	Peer       []string `placeholder:"[NAME=]KEY[@HOST[:PORT]]" help:"With --secure: a peer, as --peer of the other commands; repeatable, or separated by commas."`
	SecurePort string   `name:"secure-port" placeholder:"PORT" help:"With --secure: the UDP port, as --secure-port of the other commands."`

	TLS     string `name:"tls" placeholder:"CERT,KEY" help:"iWARP over TLS 1.3, and no RoCE, as --tls of the other commands."`
	TLSCA   string `name:"tls-ca" placeholder:"FILE" help:"With TLS: the authorities of peers' certificates, as --tls-ca of the other commands."`
	TLSName string `name:"tls-name" placeholder:"NAME" help:"With TLS: the name in the certificates of servers, as --tls-name of the other commands."`

	Allow []node.Allowed `placeholder:"HOST" help:"Let only these hosts reach the program, as --allow of the other commands: addresses, networks, and with --secure or TLS names and public keys of peers; separated by commas, repeatable."`

	Inside string `hidden:"" help:"The directory with the files to mount; for this command's own use."`

	Netlink  uint32 `hidden:"" help:"Answer requests of netlink on standard input for the socket with this port ID; for libsoftrnic-sysfs.so."`
	Tree     string `hidden:"" help:"With --netlink: the directory with sysfs."`
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
  softrnic run --sockets -- iperf3 -c 127.0.0.1

The libraries can also be used without softrnic run. LD_LIBRARY_PATH then names their directory, with its libmlx5 and libefa if the
machine lacks these. These variables replace the flags: SOFTRNIC_LINK, SOFTRNIC_ADDR (separated by commas), SOFTRNIC_SHARED (1 or 0),
SOFTRNIC_SELECTIVE_REPEAT (1), SOFTRNIC_TOP (1), SOFTRNIC_DEVICE, SOFTRNIC_CARD, SOFTRNIC_SPEED, SOFTRNIC_WIDTH, SOFTRNIC_TRACE,
SOFTRNIC_CAPTURE, SOFTRNIC_IMPAIR, SOFTRNIC_ALLOW and SOFTRNIC_LOG.
SOFTRNIC_TRANSPORT (roce, iwarp, or both in the order of preference) selects the protocol of rdma_cm, and the device that is listed
first. SOFTRNIC_COUNTERS names a file to which each process appends the counters of its devices. SOFTRNIC_CONFIG names a file with lines
of these variables.

There can be up to 8 rails, each with its own link, addresses and devices. SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE then have a
part for each rail, separated by semicolons. A single link is used by all rails. The numbers at the end of a single device name count up:

  SOFTRNIC_LINK=shm SOFTRNIC_ADDR="10.0.0.1/24;10.0.1.1/24" SOFTRNIC_DEVICE=mlx5_0, softrnic run -- ibv_devices`
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
	if c.Sockets && (len(c.Allow) > 0 || c.getenv("SOFTRNIC_ALLOW") != "") {
		return errors.New("--sockets goes without --allow: the program's sockets also take connections of other hosts, over TCP")
	}
	if c.Sockets && (c.getenv("SOFTRNIC_SECURE") != "" || c.getenv("SOFTRNIC_TLS") != "" || c.getenv("SOFTRNIC_TLS_CA") != "") {
		return errors.New("--sockets goes without --secure and --tls: hosts without rsockets would be reached over TCP, which is not encrypted")
	}
	if c.Wait <= 0 {
		return fmt.Errorf("--sockets-wait %v: must be more than 0", c.Wait)
	}
	cfg, err := dropin.FromEnv(c.getenv)
	if err == nil && c.Sockets && len(cfg.Rails) > 1 {
		return fmt.Errorf("--sockets has one rail: SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE describe %d", len(cfg.Rails))
	}
	return err
}

// tlsFiles returns the flags of TLS with absolute paths. The program may change its directory.
func (c *Command) tlsFiles() node.TLSFlags {
	given := node.TLSFlags{TLS: c.TLS, TLSCA: c.TLSCA, TLSName: c.TLSName}
	if files, err := given.Absolute(); err == nil {
		return files
	}
	return given
}

// settings returns the environment variables that the flags stand for.
func (c *Command) settings() map[string]string {
	s := map[string]string{}
	if c.Log != nil {
		s["SOFTRNIC_LOG"] = strings.ToLower(c.Log.String())
	}
	var addrs []string
	for _, a := range c.Addr {
		if a.IsValid() {
			addrs = append(addrs, a.String())
		} else {
			addrs = append(addrs, a.Addr().String())
		}
	}
	var allowed []string
	for _, a := range c.Allow {
		allowed = append(allowed, a.String())
	}
	files := c.tlsFiles()
	for name, value := range map[string]string{"SOFTRNIC_LINK": c.Link, "SOFTRNIC_ADDR": strings.Join(addrs, ","),
		"SOFTRNIC_DEVICE": c.Device, "SOFTRNIC_CARD": c.Card, "SOFTRNIC_SPEED": c.Speed, "SOFTRNIC_WIDTH": c.Width, "SOFTRNIC_TRACE": c.Trace,
		"SOFTRNIC_CAPTURE": c.Capture, "SOFTRNIC_IMPAIR": c.Impair, "SOFTRNIC_SECURE": c.Secure,
		"SOFTRNIC_PEERS": strings.Join(c.Peer, ","), "SOFTRNIC_SECURE_PORT": c.SecurePort,
		"SOFTRNIC_TLS": files.TLS, "SOFTRNIC_TLS_CA": files.TLSCA, "SOFTRNIC_TLS_NAME": files.TLSName,
		"SOFTRNIC_ALLOW": strings.Join(allowed, ",")} {
		if value != "" {
			s[name] = value
		}
	}
	if c.Shared != nil {
		s["SOFTRNIC_SHARED"] = map[bool]string{true: "1", false: "0"}[*c.Shared]
	}
	if c.Repeat {
		s["SOFTRNIC_SELECTIVE_REPEAT"] = "1"
	}
	if c.Top {
		s["SOFTRNIC_TOP"] = "1"
	}
	if c.Metrics != "" {
		s["SOFTRNIC_RUN"] = strconv.Itoa(os.Getpid())
	}
	return s
}

func (c *Command) getenv(name string) string {
	if v, ok := c.settings()[name]; ok {
		return v
	}
	return os.Getenv(name)
}

// environment returns the program's environment, in which libraries in dirs come first.
func (c *Command) environment(dirs []string, command string) []string {
	set := c.settings()
	set["SOFTRNIC_COMMAND"], set["LD_LIBRARY_PATH"] = command, strings.Join(dirs, ":")
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
