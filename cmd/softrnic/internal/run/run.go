// Package run is `softrnic run`: it runs a program for libibverbs and librdmacm with the drop-in
// libraries.
package run

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command runs a program.
type Command struct {
	Link    string        `placeholder:"LINK" help:"The link of the devices, as --link of the other commands. Default: the machine's own addresses over its own UDP and TCP sockets, shared with other programs of this user. kernel:all: devices on each interface that has a global address; softrnic devinfo --link kernel:all shows them."`
	Addr    []node.CIDR   `sep:"none" placeholder:"CIDR" help:"Address of the devices, as --addr of the other commands; repeatable."`
	Shared  *bool         `negatable:"" help:"With --link kernel[:INTERFACE]: share the addresses with other programs of this user, which is the default. --no-shared: the program has them for itself."`
	Device  string        `placeholder:"ROCE[,IWARP]" help:"Names of the RoCE and the iWARP device: mlx5_0,siw0. A comma with nothing behind it leaves out the iWARP device. Default: softrnic0,softrnic0_iw."`
	Repeat  bool          `name:"selective-repeat" help:"RoCEv2: repeat lost packets alone towards other SoftRNICs that were given this too, as --selective-repeat of the other commands."`
	Speed   string        `placeholder:"GBPS" help:"The rate that the devices' ports report, in Gbit/s: 25, 100, 200, 400 … It is what programs read, and nothing is sent slower or faster for it. Default: 40."`
	Width   string        `placeholder:"LANES" help:"With --speed: the number of lanes that the ports report, 1, 2, 4, 8 or 12. Default: 4, or if the rate does not go with that, the next that it goes with."`
	Libs    string        `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside the command softrnic, or in ../lib/softrnic from there."`
	Sysfs   string        `enum:"auto,on,preload,off" default:"auto" placeholder:"MODE" help:"How the program sees its devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, where UCX and pyverbs look: on: in a mount namespace; preload: by a library before the C library; off: not at all; auto: on if this user may make a mount namespace without a loss of rights, else preload. Default: auto."`
	Sockets bool          `help:"Carry the program's TCP connections over RDMA, as rsockets, where the other side speaks these: as another softrnic run --sockets, or a program with librspreload.so, does. Other connections are TCP as ever. The program gets no devices."`
	Wait    time.Duration `name:"sockets-wait" default:"3s" placeholder:"TIME" help:"With --sockets: how long a host may take to answer over RDMA before TCP is used, and RDMA not tried with it for a minute. Default: 3s."`
	Log     *slog.Level   `name:"log-level" placeholder:"LEVEL" help:"What the libraries log to stderr: debug, info, warn or error. Default: warn."`
	Top     bool          `help:"Let softrnic top of this user show the program's queue pairs."`
	Metrics string        `placeholder:"HOST:PORT" help:"Answer Prometheus on this address of the machine's own, http://HOST:PORT/metrics, as serve --metrics does, for each process of the program that uses RDMA. The label pid tells these apart; a device has both protocols of a rail."`
	Trace   string        `type:"path" placeholder:"FILE" help:"Append what happens to the queue pairs of the program's processes to this file, as --trace of the other commands. If the file cannot be written, as on a full disk, the exit status is 1 at least."`
	Inside  string        `hidden:"" help:"The directory of what to mount; for this command's own use."`

	Program []string `arg:"" passthrough:"" help:"The program and its arguments."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The program finds libibverbs.so.1 and librdmacm.so.1 of SoftRNIC in place of the system's, and two devices that are not there:
one of RoCEv2, one of iWARP. It needs no privileges, no hardware and no kernel module. What the program starts has them, too;
one softrnic run may wrap mpirun. It runs on Linux with glibc ` + dropin.OldestGlibc + ` or later, and not with musl.

  softrnic run -- ibv_devinfo
  softrnic run -- ib_write_bw                 in one terminal
  softrnic run -- ib_write_bw 127.0.0.1       in another

With --sockets this command has the device, and passes on what the program's TCP connections carry; the library that it loads into the
program only asks it when the program connects or listens. So the program may fork, daemonize and wait with epoll. A socket that does not
wait (O_NONBLOCK) is told at once that it is being connected, and is writable when that is so; if the host does not speak rsockets, this
command passes the connection on by TCP. Programs without the C library's connect and listen have TCP alone: those that are linked
statically, those in Go, and io_uring. This command ends when the program has, nobody listens any more, and all connections have ended.

  softrnic run --sockets -- iperf3 -s
  softrnic run --sockets -- iperf3 -c 127.0.0.1

The same without softrnic run: LD_LIBRARY_PATH is the directory of the libraries, with its libmlx5 and libefa if the machine
lacks these, and SOFTRNIC_LINK, SOFTRNIC_ADDR (with commas), SOFTRNIC_SHARED (1 or 0), SOFTRNIC_SELECTIVE_REPEAT (1), SOFTRNIC_TOP (1),
SOFTRNIC_DEVICE, SOFTRNIC_SPEED, SOFTRNIC_WIDTH, SOFTRNIC_TRACE and SOFTRNIC_LOG are the flags; SOFTRNIC_TRANSPORT (roce, iwarp, or both in an order) is
what rdma_cm connects over, and whose device is listed first. SOFTRNIC_CONFIG names a file with lines of these.

Up to 8 rails, each with a link, addresses and devices of its own: SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE then have a
part for each, separated by semicolons. One link is that of all rails, and one device name that ends in a number counts up:

  SOFTRNIC_LINK=shm SOFTRNIC_ADDR="10.0.0.1/24;10.0.1.1/24" SOFTRNIC_DEVICE=mlx5_0, softrnic run -- ibv_devices`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 {
		return errors.New("no program: it follows --, as in softrnic run -- ibv_devinfo")
	}
	if c.Sockets && (c.Sysfs == "on" || c.Sysfs == "preload") {
		return fmt.Errorf("--sockets goes without --sysfs %s", c.Sysfs)
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
	for name, value := range map[string]string{"SOFTRNIC_LINK": c.Link, "SOFTRNIC_ADDR": strings.Join(addrs, ","),
		"SOFTRNIC_DEVICE": c.Device, "SOFTRNIC_SPEED": c.Speed, "SOFTRNIC_WIDTH": c.Width, "SOFTRNIC_TRACE": c.Trace} {
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

// libraries returns the directory of the libraries and the file of this command.
func (c *Command) libraries() (dir, command string, err error) {
	if command, err = os.Executable(); err != nil {
		return "", "", err
	}
	if command, err = filepath.EvalSymlinks(command); err != nil {
		return "", "", err
	}
	if dir = c.Libs; dir == "" {
		if dir = dropin.LibrariesBeside(filepath.Dir(command)); dir == "" {
			return "", "",
				fmt.Errorf("%s is neither beside %s nor in ../%s: go run ./cmd/libsoftrnic/build -prefix DIR builds and installs it "+
					"with this command, and --libs says where it is", dropin.Libraries[0], command, dropin.LibDir)
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	for _, lib := range dropin.Libraries {
		if _, err := os.Stat(filepath.Join(dir, lib)); err != nil {
			return "", "", fmt.Errorf("--libs: %w", err)
		}
	}
	return dir, command, nil
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
