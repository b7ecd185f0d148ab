package rdmatransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/classify"
	"github.com/softrnic/softrnic/stack"
)

// NewClassifier returns the RoCE classifier that a hub ([stack.Shared]) needs. It stores the last
// 65,536 connections of each process and 16,384 requests of peers.
func NewClassifier() stack.Classifier { return classify.New() }
