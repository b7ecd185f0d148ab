// Package kubernetes is `softrnic kubernetes`: a device plugin, with which pods of Kubernetes get
// RDMA devices.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// Flags describe the devices of a node. The DRA driver has them too.
type Flags struct {
	Rail    []Rail     `sep:"none" placeholder:"RAIL" help:"A rail of the node; repeatable, up to 8. Default: name=rail0;link=kernel, which is the pod's own network."`
	Devices int        `default:"64" placeholder:"N" help:"The number of devices of each rail. Each is for one pod, and costs nothing until it is used. Default: 64."`
	Libs    string     `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside this command, or in ../lib/softrnic from there."`
	Program string     `name:"softrnic" type:"existingfile" placeholder:"FILE" help:"The command softrnic, which containers get. Default: this command, or the one beside it."`
	Install string     `type:"path" placeholder:"DIR" help:"Copy the libraries and the command to this directory of the node first, for containers to mount. A plugin in a container needs this: DIR is then a volume with the same path on the node."`
	CDIDir  string     `name:"cdi-dir" default:"/var/run/cdi" type:"path" placeholder:"DIR" help:"Directory for the specification of the Container Device Interface. Default: /var/run/cdi."`
	Speed   string     `placeholder:"GBPS" help:"The rate that the devices' ports report, in Gbit/s. It does not change the rate of packets. Default: 40."`
	Log     slog.Level `name:"log-level" default:"info" placeholder:"LEVEL" help:"Log messages of at least this level to stderr: debug, info, warn or error. Default: info."`
}

// Node returns the node that the flags describe, after it has installed its files.
func (f *Flags) Node() (*Node, error) {
	libs, command, err := f.files()
	if err != nil {
		return nil, err
	}
	if f.Install != "" {
		if libs, command, err = install(libs, command, f.Install); err != nil {
			return nil, fmt.Errorf("--install: %w", err)
		}
	}
	n := &Node{Rails: f.Rail, Count: f.Devices, CDIDir: f.CDIDir, Settings: cdi.Settings{Libraries: libs, Command: command, Speed: f.Speed}}
	if len(n.Rails) == 0 {
		n.Rails = []Rail{DefaultRail}
	}
	return n, n.validate()
}

// files returns the directory of the libraries and the command softrnic.
func (f *Flags) files() (libs, command string, err error) {
	own, err := os.Executable()
	if err == nil {
		own, err = filepath.EvalSymlinks(own)
	}
	if err != nil {
		return "", "", err
	}
	if command = f.Program; command == "" {
		command = filepath.Join(filepath.Dir(own), "softrnic")
	}
	if libs = f.Libs; libs == "" {
		if libs = dropin.LibrariesBeside(filepath.Dir(command)); libs == "" {
			return "", "", fmt.Errorf("%s is neither beside %s nor in ../%s: --libs says where it is", dropin.Libraries[0], command,
				dropin.LibDir)
		}
	}
	libs, err = filepath.Abs(libs)
	return libs, command, err
}

// Logger returns a logger of the flags' level.
func (f *Flags) Logger(e *cli.Env) *slog.Logger {
	return e.Log(f.Log)
}

// Command is the device plugin.
type Command struct {
	Flags
	CDI     bool   `name:"cdi" default:"true" negatable:"" help:"Give containers their devices by CDI, which containerd has from 1.7 and CRI-O from 1.23. --no-cdi: by mounts and environment variables, for older container runtimes."`
	Kubelet string `name:"kubelet-dir" default:"/var/lib/kubelet/device-plugins" type:"path" placeholder:"DIR" help:"The kubelet's directory of device plugins. Default: /var/lib/kubelet/device-plugins."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `A container with the limit ` + Resource + `: 2 has two RDMA devices, whatever its image is: the libraries come from the node.
It needs no privileges. Its devices are softrnic0, softrnic1, and so on, with the addresses of the pod, so that a NetworkPolicy
for UDP port 4791 (RoCEv2) and for TCP (iWARP) applies to them. A container has at most 8 devices.

A rail is described by parts that are separated by semicolons:

  name=NAME        a name of up to 32 lower-case letters, digits and hyphens
  link=LINK        the link in the pod, as --link of the other commands: kernel, kernel:net1. Default: kernel. With kernel:all, a
                   device for each interface of the pod, a container has no other device
  addr=ADDRESSES   the addresses in the pod, separated by commas. Default: all of the link
  device=NAMES     the names of the RoCE and the iWARP device, separated by a comma. The position among the devices of the container,
                   from 0, replaces the number at the end of a name, or before _iw
  network=NAME     the network that the rail belongs to, which the DRA driver shows as an attribute
  interface=NAME   an interface of the node that must be up; otherwise the devices are unhealthy

Devices are also unhealthy if a library or the command is missing on the node, or the CDI specification cannot be written. The
plugin watches these, and the kubelet: when the kubelet starts again, the plugin registers again. Several devices of one container
are of different rails as far as possible.

  softrnic kubernetes --rail "name=a;link=kernel:net1" --rail "name=b;link=kernel:net2"`
}

// Run serves until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	n, err := c.Node()
	if err != nil {
		return err
	}
	if !c.CDI {
		n.CDIDir = ""
	}
	log := c.Logger(e)
	health := NewMonitor(n, log)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- health.Run(ctx) }()
	go func() { ended <- (&server{node: n, health: health, dir: c.Kubelet, log: log}).run(ctx) }()
	err = <-ended // early, with an error, or both after ctx
	cancel()
	return errors.Join(err, <-ended)
}
