//go:build linux

package interop

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// One process cannot have more than 71 QPs on siw.
func TestIWARPCMTime(t *testing.T) { testCMTime(t, verbs.IWARP, 50) }

func TestIWARPRpingInterrupted(t *testing.T) { testRpingInterrupted(t, verbs.IWARP) }
