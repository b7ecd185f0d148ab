package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// specFile returns the file of the specification. softrnic cdi writes another one, with other
// devices.
func (n *Node) specFile() string {
	return filepath.Join(n.CDIDir, n.CDIPrefix+"softrnic.dev-rnic-kubernetes.json")
}

// spec returns the CDI specification of the node's rails. A device of CDI is a rail in a position
// among the container's devices. The positions of a container's devices differ. So the
// specification does not depend on what is allocated, and lasts as long as the node.
func (n *Node) spec() (*specs.Spec, error) {
	s := &specs.Spec{Kind: cdi.Kind, ContainerEdits: cdi.CommonEdits(n.Settings)}
	for _, r := range n.Rails {
		for position := range dropin.MaxRails {
			s.Devices = append(s.Devices,
				specs.Device{Name: n.cdiDevice(&r, position), ContainerEdits: cdi.RailEdits(position, r.at(position))})
		}
	}
	version, err := specs.MinimumRequiredVersion(s)
	s.Version = version
	return s, err
}

// at returns the rail in a position among the devices of a container. The names of the devices are
// numbered by the position, so that they differ.
func (r *Rail) at(position int) dropin.RailSpec {
	spec := r.Spec
	spec.Device = dropin.PositionedDevices(spec.Device, position)
	return spec
}

// Validate returns an error if the libraries would refuse the devices of a container: rails by
// their positions among these.
func (n *Node) Validate(rails map[int]*Rail) error {
	edits := cdi.CommonEdits(n.Settings)
	for position, r := range rails {
		edits.Env = append(edits.Env, cdi.RailEdits(position, r.at(position)).Env...)
	}
	return cdi.Validate(edits)
}

func (n *Node) cdiDevice(r *Rail, position int) string {
	return fmt.Sprintf("%s%s.%d", n.CDIPrefix, r.Name, position)
}

// CDIDevice returns the qualified CDI name of a rail's device in a position among the devices of a
// container, from 0 to dropin.MaxRails-1.
func (n *Node) CDIDevice(r *Rail, position int) string {
	return cdi.Kind + "=" + n.cdiDevice(r, position)
}

// WriteSpec writes the specification, unless the file has it already.
func (n *Node) WriteSpec() error {
	if n.CDIDir == "" {
		return nil
	}
	s, err := n.spec()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if was, err := os.ReadFile(n.specFile()); err == nil && bytes.Equal(was, text) {
		return nil
	}
	return cdi.WriteFile(n.specFile(), text, 0o644)
}
