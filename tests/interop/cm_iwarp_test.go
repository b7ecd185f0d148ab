//go:build linux

package interop

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// There is no cmtime over siw: connections that come and go so fast make Linux 6.1's iw_cm crash (BUG in iwcm.c, where
// the end of a stream meets an ID that has no connection yet or no more), and one process gets no more than 71 QPs.

func TestIWARPRpingInterrupted(t *testing.T) { testRpingInterrupted(t, verbs.IWARP) }
