package status

import (
	"os"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// PublishNode publishes a node's status for softrnic top until stop is called. If that is not
// possible, it logs the reason. The other parameters are those of Node;
// empty names of devices are left out.
func PublishNode(n *node.Node, run int, hidden bool, devices ...string) (stop func()) {
	s := Node{Run: run, Hidden: hidden, Command: strings.Join(os.Args, " "), Link: n.Name(), Devices: devices}
	s.Devices = slices.DeleteFunc(s.Devices, func(name string) bool { return name == "" })
	for _, a := range n.Addrs() {
		s.Addrs = append(s.Addrs, a.String())
	}
	stop, err := Publish(n.Dev, n.Impairment, n.Faults, n.Tunnel, s)
	if err != nil {
		n.Log.Debug("softrnic top will not find this node", "error", err)
		return func() {}
	}
	return stop
}
