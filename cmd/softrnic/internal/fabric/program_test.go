package fabric

import (
	"testing"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/trace"
)

// program is the command line with this package's command, and softrnic trace, which reads its
// captures.
var program = clitest.Program(func() any {
	return new(struct {
		Fabric Command       `cmd:""`
		Trace  trace.Command `cmd:""`
	})
})

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
