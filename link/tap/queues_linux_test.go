package tap

import (
	"testing"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/interfaces"
)

func TestQueues(t *testing.T) {
	inNamespace(t)
	interfaces.Bridge(t, "br0", 4200)
	a := openTAP(t, "a0", &Config{Bridge: "br0", MTU: 4200, Queues: 3})
	b := openTAP(t, "b0", &Config{Bridge: "br0", MTU: 4200, Queues: 3})
	if !a.Offloads().USO {
		t.Skip("needs a kernel with UDP segmentation offload in TAP (6.2)")
	}
	linktest.Queues(t, a, b)
	for _, n := range []int{-1, MaxQueues + 1} {
		if _, err := Open("a0", &Config{Queues: n}); err == nil {
			t.Errorf("%d queues opened", n)
		}
	}
	one := openTAP(t, "c0", nil)
	if _, err := Open("c0", &Config{Queues: 2}); err == nil {
		t.Error("a second program opened ", one.Name())
	}
}
