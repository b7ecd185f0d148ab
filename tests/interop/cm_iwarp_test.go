//go:build linux

package interop

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// There is no cmtime over siw: connections that come and go so fast have made Linux 6.1's iw_cm crash (a BUG in its work
// handler), and one process was seen to get no more than 71 QPs.

func TestIWARPRpingInterrupted(t *testing.T) { testRpingInterrupted(t, verbs.IWARP) }
