// Package cdi is `softrnic cdi`: it writes a specification of the Container Device Interface, by
// which container runtimes give a container SoftRNIC's devices.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command writes the specification, or checks one.
type Command struct {
	Output string      `type:"path" placeholder:"FILE" help:"Write the specification to this file, such as /etc/cdi/softrnic.json, and create its directory. Default: stdout."`
	Rails  int         `default:"1" placeholder:"N" help:"The number of devices, 1 to 8. Default: 1."`
	Link   []string    `sep:"none" placeholder:"LINK" help:"The link of a device, as --link of softrnic run; repeatable, once for all devices or once for each. Default: kernel, the container's own addresses over its own UDP and TCP sockets."`
	Device string      `placeholder:"ROCE[,IWARP]" help:"Names of the first device's RoCE and iWARP device, as --device of softrnic run. The numbers at their ends, or before _iw, count up. Default: softrnic0,softrnic0_iw."`
	Card   string      `placeholder:"CARD" help:"The card whose identity the RoCE devices take, as --card of softrnic run. Default: no card."`
	Speed  string      `placeholder:"GBPS" help:"The rate that the devices' ports report, as --speed of softrnic run. Default: 40."`
	Width  string      `placeholder:"LANES" help:"With --speed: the number of lanes that the ports report, as --width of softrnic run."`
	Log    *slog.Level `name:"log-level" placeholder:"LEVEL" help:"The level of the libraries' log on stderr: debug, info, warn or error. Default: warn."`
	Libs   string      `type:"existingdir" placeholder:"DIR" help:"Directory of the drop-in libraries. Default: beside the command softrnic, or in ../lib/softrnic from there."`
	Check  bool        `help:"Write nothing. Say what is wrong with the specifications and with what they name; the exit status is then 1."`
	Root   string      `type:"existingdir" placeholder:"DIR" help:"With --check: also say whether programs in this root directory of an image can use the devices."`
	Dirs   []string    `name:"dir" default:"/etc/cdi,/var/run/cdi" type:"path" placeholder:"DIR" help:"With --check: the directories with specifications that the runtime reads; repeatable. Default: /etc/cdi and /var/run/cdi."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The devices are softrnic.dev/rnic=0, softrnic.dev/rnic=1 and so on, and softrnic.dev/rnic=all for all of them. A container may have
any of them together. Programs in it, made for libibverbs and librdmacm, then run unchanged. The container needs no privileges, and no
libibverbs. It may have any user and a read-only root file system. Its image needs glibc ` + dropin.OldestGlibc + ` or later; programs of musl do not
see the devices.

  sudo softrnic cdi --output /etc/cdi/softrnic.json
  podman run --device softrnic.dev/rnic=0 IMAGE ibv_devinfo
  softrnic cdi --check --root /path/of/an/image

The container gets three read-only mounts: the libraries and the command softrnic in ` + dropin.ContainerPrefix + `, and ` + dropin.ContainerPreload + `.
The latter makes the dynamic linker use these libraries for every program, also if the image has libibverbs or sets LD_LIBRARY_PATH.
It hides a file of this name in the image. A library before the C library shows the devices in /sys/class/infiniband,
/sys/class/infiniband_verbs and /dev/infiniband, as softrnic run --sysfs preload does.

The processes of a container, and of all containers of a pod, share the addresses of the container or pod, as long as they have the same
user. Their sockets are in ` + dropin.ContainerDirectory + `. Environment variables of softrnic run --help, such as SOFTRNIC_IMPAIR, may be set for the container.`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.Rails < 1 || c.Rails > dropin.MaxRails {
		return fmt.Errorf("--rails %d: must be 1 to %d", c.Rails, dropin.MaxRails)
	}
	if len(c.Link) > 1 && len(c.Link) != c.Rails {
		return fmt.Errorf("--link is given %d times, and --rails is %d: must be given once, or once for each", len(c.Link), c.Rails)
	}
	for _, l := range c.Link {
		var spec node.LinkSpec
		if err := spec.UnmarshalText([]byte(l)); err != nil && l != dropin.AllInterfaces {
			return fmt.Errorf("--link: %w", err)
		}
		if m := spec.Medium; l != dropin.AllInterfaces && m != "kernel" && m != "shm" {
			return fmt.Errorf("--link %s: must be kernel, kernel:INTERFACE, kernel:all or shm: a container without privileges has no other", l)
		}
	}
	if c.Root != "" && !c.Check {
		return errors.New("--root is for --check")
	}
	if e := filepath.Ext(c.Output); c.Output != "" && e != ".json" && e != ".yaml" {
		return fmt.Errorf("--output %s: must end in .json or .yaml: container runtimes read no other files", c.Output)
	}
	_, err := Spec(c.settings("", ""), c.rails()...)
	return err
}

// settings returns the settings of the flags.
func (c *Command) settings(libraries, command string) Settings {
	s := Settings{Libraries: libraries, Command: command, Speed: c.Speed, Width: c.Width, Card: c.Card}
	if c.Log != nil {
		s.Log = strings.ToLower(c.Log.String())
	}
	return s
}

// rails returns the rails of the flags.
func (c *Command) rails() (rails []dropin.RailSpec) {
	for i := range c.Rails {
		var r dropin.RailSpec
		if c.Device != "" || c.Card == "" { // a card names its devices
			r.Device = dropin.NumberedDevices(c.Device, i)
		}
		switch len(c.Link) {
		case 0:
		case 1:
			r.Link = c.Link[0]
		default:
			r.Link = c.Link[i]
		}
		rails = append(rails, r)
	}
	return rails
}

// Run writes the specification, or checks those that are there.
func (c *Command) Run(e *cli.Env) error {
	if c.Check {
		return c.check(e)
	}
	libraries, command, err := dropin.FindInstall(c.Libs)
	if err != nil {
		return err
	}
	if err := Complete(libraries); err != nil {
		return err
	}
	spec, err := Spec(c.settings(libraries, command), c.rails()...)
	if err != nil {
		return err
	}
	if c.Output == "" {
		return e.WriteJSON(spec)
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(c.Output, append(text, '\n'), 0o644)
}

// Complete returns an error unless the directory has all files for containers. After a crash of the
// machine, a file that is there may be empty.
func Complete(libraries string) error {
	want := dropin.Preload()
	for line := range strings.Lines(want) {
		name, err := filepath.Rel(dropin.ContainerLibraries, strings.TrimSpace(line))
		if err != nil {
			return err
		}
		switch info, err := os.Stat(filepath.Join(libraries, name)); {
		case err != nil:
			return fmt.Errorf("a library is missing: %w", err)
		case info.Size() == 0:
			return fmt.Errorf("the library %s is empty: install it again", filepath.Join(libraries, name))
		}
	}
	file := filepath.Join(libraries, dropin.PreloadFile)
	switch text, err := os.ReadFile(file); {
	case err != nil:
		return fmt.Errorf("the libraries are not of an installation for containers: %w", err)
	case string(text) != want:
		return fmt.Errorf("%s does not name the libraries of this version of softrnic: install both again", file)
	}
	return nil
}

// WriteFile writes a file in one step, so that nobody ever reads a part of it, also after a crash
// of the machine. It creates the directory.
func WriteFile(name string, text []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".softrnic-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
