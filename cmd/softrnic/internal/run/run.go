// Package run is `softrnic run`: it runs a program that was written for libibverbs and librdmacm on the drop-in libraries.
package run

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command runs a program.
type Command struct {
	Link    string      `placeholder:"LINK" help:"The link of the devices, as --link of the other commands. Default: the machine's own addresses over its own UDP and TCP sockets, shared with other programs of this user (kernel with --shared)."`
	Addr    []node.CIDR `sep:"none" placeholder:"CIDR" help:"Address of the devices, as --addr of the other commands; repeatable."`
	Shared  bool        `help:"With --link kernel:INTERFACE: share the addresses with other programs of this user. Where --link is left out it is so anyway."`
	Device  string      `placeholder:"ROCE[,IWARP]" help:"Names of the RoCE and the iWARP device: mlx5_0,siw0. A comma with nothing behind it leaves out the iWARP device. Default: softrnic0,softrnic0_iw."`
	Libs    string      `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside the command softrnic, or in ../lib/softrnic from there."`
	Sysfs   string      `enum:"auto,on,preload,off" default:"auto" placeholder:"MODE" help:"How the program sees its devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, where UCX and pyverbs look: on: in a mount namespace; preload: by a library before the C library; off: not at all; auto: on if this user may make a mount namespace, else preload. Default: auto."`
	Sockets bool        `help:"Have the program's TCP sockets be rsockets, by the distribution's librspreload.so (Debian: librdmacm1): for programs that wait with poll or select, not epoll. Both sides are to do so. The devices are not shown in /sys."`
	Log     *slog.Level `name:"log-level" placeholder:"LEVEL" help:"What the libraries log to stderr: debug, info, warn or error. Default: warn."`
	Top     bool        `help:"Let softrnic top of this user show the program's queue pairs."`
	Metrics string      `placeholder:"HOST:PORT" help:"Answer Prometheus on this address of the machine's own, http://HOST:PORT/metrics, as serve --metrics does, for each process of the program that uses RDMA. The label pid tells these apart; a device has both protocols of a rail."`
	Inside  string      `hidden:"" help:"The directory of what to mount; for this command's own use."`

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

  softrnic run --sockets -- iperf3 -s
  softrnic run --sockets -- iperf3 -c 127.0.0.1

The same without softrnic run: LD_LIBRARY_PATH is the directory of the libraries, and SOFTRNIC_LINK, SOFTRNIC_ADDR (with commas),
SOFTRNIC_SHARED (1), SOFTRNIC_TOP (1), SOFTRNIC_DEVICE and SOFTRNIC_LOG are the flags; SOFTRNIC_TRANSPORT (roce, iwarp, or both in an order) is
what rdma_cm connects over, and whose device is listed first, SOFTRNIC_TRACE a file for what happens to queue pairs. SOFTRNIC_CONFIG names a file with lines of these.

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
		return errors.New("no program: give it behind --, as in softrnic run -- ibv_devinfo")
	}
	if c.Sockets && (c.Sysfs == "on" || c.Sysfs == "preload") {
		return fmt.Errorf("--sockets goes without --sysfs %s", c.Sysfs)
	}
	_, err := dropin.FromEnv(c.getenv)
	return err
}

// settings are the variables of the environment that the flags stand for.
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
	for name, value := range map[string]string{"SOFTRNIC_LINK": c.Link, "SOFTRNIC_ADDR": strings.Join(addrs, ","), "SOFTRNIC_DEVICE": c.Device} {
		if value != "" {
			s[name] = value
		}
	}
	if c.Shared {
		s["SOFTRNIC_SHARED"] = "1"
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

// libraries is the directory of the libraries, and command the file of this command.
func (c *Command) libraries() (dir, command string, err error) {
	if command, err = os.Executable(); err != nil {
		return "", "", err
	}
	if command, err = filepath.EvalSymlinks(command); err != nil {
		return "", "", err
	}
	if dir = c.Libs; dir == "" {
		if dir = dropin.LibrariesBeside(filepath.Dir(command)); dir == "" {
			return "", "", fmt.Errorf("%s is neither beside %s nor in ../%s: go run ./cmd/libsoftrnic/build -prefix DIR builds and installs it with this command, and --libs says where it is", dropin.Libraries[0], command, dropin.LibDir)
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

// preloadDirs are where distributions have librspreload.so: Debian's in a directory of the machine's type, and others'.
var preloadDirs = []string{"/usr/lib/*/rsocket", "/usr/lib64/rsocket", "/usr/lib/rsocket"}

// socketsLibrary is the file of librspreload.so, which has a program call rsockets' functions in place of those of sockets.
func socketsLibrary() (string, error) {
	for _, dir := range preloadDirs {
		if files, _ := filepath.Glob(filepath.Join(dir, "librspreload.so")); len(files) > 0 {
			return files[0], nil
		}
	}
	return "", fmt.Errorf("--sockets: there is no librspreload.so in %s: install librdmacm (Debian: librdmacm1)", strings.Join(preloadDirs, ", "))
}

// environment is that of the program. preload is a library to load before others, or "".
func (c *Command) environment(libs, command, preload string) []string {
	set := c.settings()
	if preload != "" {
		set["LD_PRELOAD"] = preload
		if others := os.Getenv("LD_PRELOAD"); others != "" {
			set["LD_PRELOAD"] += ":" + others
		}
	}
	set["SOFTRNIC_COMMAND"], set["LD_LIBRARY_PATH"] = command, libs
	if path := os.Getenv("LD_LIBRARY_PATH"); path != "" {
		set["LD_LIBRARY_PATH"] += ":" + path
	}
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); set[name] == "" {
			env = append(env, e)
		}
	}
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}
