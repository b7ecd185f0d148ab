package cdi

import (
	"fmt"
	"path/filepath"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// Kind is the kind of the devices: softrnic.dev/rnic=0 is the name of the first.
const Kind = "softrnic.dev/rnic"

// Settings are what all devices of a container have in common. Empty settings are the defaults of
// softrnic run.
type Settings struct {
	// Libraries and Command are files of the host: the directory of the libraries, and the
	// command softrnic. dropin.FindInstall finds them.
	Libraries, Command string
	Speed, Width       string // of the ports, as --speed and --width of softrnic run
	Card               string // as --card of softrnic run
	Transport          string // of rdma_cm, as SOFTRNIC_TRANSPORT
	Log                string // the level of the libraries' log
}

// CommonEdits returns what a container needs once, however many devices it has: the libraries, what
// shows the devices in sysfs and /dev/infiniband, and settings. It needs no privileges, and no
// hook. The runtime creates the mount points.
func CommonEdits(s Settings) specs.ContainerEdits {
	// A container cannot change the host's files.
	options := []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
	var edits specs.ContainerEdits
	for _, v := range []struct{ name, value string }{{"SOFTRNIC_SPEED", s.Speed}, {"SOFTRNIC_WIDTH", s.Width}, {"SOFTRNIC_CARD", s.Card},
		{"SOFTRNIC_TRANSPORT", s.Transport}, {"SOFTRNIC_LOG", s.Log}} {
		if v.value != "" {
			edits.Env = append(edits.Env, v.name+"="+v.value)
		}
	}
	for _, m := range []struct{ from, to string }{
		{s.Libraries, dropin.ContainerLibraries},
		{s.Command, dropin.ContainerCommand},
		{filepath.Join(s.Libraries, dropin.PreloadFile), dropin.ContainerPreload},
	} {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: m.from, ContainerPath: m.to, Options: options})
	}
	return edits
}

// RailEdits returns what a container needs for one of its devices, in addition to CommonEdits. The
// number of the rail is 0 to dropin.MaxRails-1, and the devices of a container have different ones.
// If rail.Device is empty, the number is also that of the device's name, softrnic0, unless a card
// names the device.
func RailEdits(number int, rail dropin.RailSpec) specs.ContainerEdits {
	return specs.ContainerEdits{Env: []string{dropin.RailVariable(number) + "=" + rail.Value()}}
}

// Edits returns all edits of a container with the given rails, numbered from 0. The error names a
// setting that the libraries would refuse.
func Edits(s Settings, rails ...dropin.RailSpec) (specs.ContainerEdits, error) {
	edits := CommonEdits(s)
	for i, r := range rails {
		edits.Env = append(edits.Env, RailEdits(i, r).Env...)
	}
	return edits, Validate(edits)
}

// Validate returns an error if the libraries would refuse the environment of the edits.
func Validate(edits specs.ContainerEdits) error {
	return dropin.Validate(environment(edits))
}

// environment returns a getenv of the edits' environment.
func environment(edits specs.ContainerEdits) func(string) string {
	return func(name string) string {
		for _, e := range edits.Env {
			if n := len(name); len(e) > n && e[n] == '=' && e[:n] == name {
				return e[n+1:]
			}
		}
		return ""
	}
}

// Spec returns a specification with a device for each rail, named 0, 1, and so on, and a device all
// with all of them. A container may have any of them together.
func Spec(s Settings, rails ...dropin.RailSpec) (*specs.Spec, error) {
	if _, err := Edits(s, rails...); err != nil {
		return nil, err
	}
	spec := &specs.Spec{Kind: Kind, ContainerEdits: CommonEdits(s)}
	all := specs.Device{Name: "all"}
	for i, r := range rails {
		edits := RailEdits(i, r)
		spec.Devices = append(spec.Devices, specs.Device{Name: fmt.Sprint(i), ContainerEdits: edits})
		all.ContainerEdits.Env = append(all.ContainerEdits.Env, edits.Env...)
	}
	spec.Devices = append(spec.Devices, all)
	// Older runtimes refuse a specification of a later version than they know.
	version, err := specs.MinimumRequiredVersion(spec)
	spec.Version = version
	return spec, err
}
