package conformance

import (
	"math/rand/v2"
	"testing"

	"github.com/softrnic/softrnic/link"
)

type network struct{ timeout uint8 }

func drawNetwork(seed uint64, r *rand.Rand) network { return network{timeout: 14} }
func (n network) String() string                    { return "clean" }
func (n network) harsh() bool                       { return false }
func (n network) clean() bool                       { return true }
func (n network) impair(t *testing.T, l link.Link, i int) link.Link { return l }
