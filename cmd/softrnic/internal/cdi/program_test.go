package cdi

import (
	"testing"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// program is the command line with this package's command alone.
var program = clitest.Program(func() any {
	return new(struct {
		Cdi Command `cmd:""`
	})
})

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
