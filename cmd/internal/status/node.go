package status

import (
	"os"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// PublishNode publishes a node's status for softrnic top until stop is called. If that is not
// possible, it logs the reason. run is Node.Run.
func PublishNode(n *node.Node, run int) (stop func()) {
	s := Node{Run: run, Command: strings.Join(os.Args, " "), Link: n.Name()}
	for _, a := range n.Addrs() {
		s.Addrs = append(s.Addrs, a.String())
	}
	stop, err := Publish(n.Dev, s)
	if err != nil {
		n.Log.Debug("softrnic top will not find this node", "error", err)
		return func() {}
	}
	return stop
}
