module example.com/replicated

go 1.26.3

toolchain go1.26.8

replace github.com/softrnic/softrnic => ../../..

require github.com/softrnic/softrnic v0.0.0-00010101000000-000000000000

require golang.org/x/sys v0.49.0 // indirect
