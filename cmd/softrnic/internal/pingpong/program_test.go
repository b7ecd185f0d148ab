package pingpong

import "github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"

// program is the command line with this package's command alone.
var program = clitest.Program(func() any {
	return new(struct {
		Pingpong Command `cmd:""`
	})
})
