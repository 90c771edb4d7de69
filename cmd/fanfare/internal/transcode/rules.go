package transcode

import (
	"fmt"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// annotated returns the descriptor of FanfareService with the rules as options of its
// methods, as if they stood in the protocol. The transcoder can be given rules, too, but
// takes those of Publish to be for all methods whose names begin so.
func annotated(text []byte) (protoreflect.ServiceDescriptor, error) {
	var rules annotations.Http
	if err := protojson.Unmarshal(text, &rules); err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	file := protodesc.ToFileDescriptorProto(fanfarev1.File_fanfare_v1_fanfare_proto)
	methods := map[string]*descriptorpb.MethodDescriptorProto{}
	for _, service := range file.GetService() {
		for _, method := range service.GetMethod() {
			methods[fmt.Sprintf("%s.%s.%s", file.GetPackage(), service.GetName(), method.GetName())] = method
		}
	}
	for _, rule := range rules.GetRules() {
		method := methods[rule.GetSelector()]
		if method == nil {
			return nil, fmt.Errorf("a rule is for %s, which there is not", rule.GetSelector())
		}
		if method.Options == nil {
			method.Options = &descriptorpb.MethodOptions{}
		}
		proto.SetExtension(method.Options, annotations.E_Http, rule)
	}
	described, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		return nil, fmt.Errorf("describe the service with its rules: %w", err)
	}
	return described.Services().ByName("FanfareService"), nil
}
