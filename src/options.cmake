# Compiler options of everything written here (not of generated code), and the
# one way to declare a layer.
add_library(awa_options INTERFACE)
target_compile_definitions(awa_options INTERFACE _GNU_SOURCE AWA_VERSION="${PROJECT_VERSION}")
target_include_directories(awa_options INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_compile_options(awa_options INTERFACE
    -Wall -Wextra -Werror -Wswitch-enum -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla)

if(AWA_HARDEN)
    add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong)
    add_link_options(-Wl,-z,relro,-z,now)
endif()
if(AWA_SANITIZE)
    add_compile_options(-fsanitize=${AWA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${AWA_SANITIZE})
endif()
if(AWA_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# awa_layer(NAME SOURCES file… LINKS target…): static library awa_NAME.
function(awa_layer name)
    cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "SOURCES;LINKS")
    add_library(awa_${name} STATIC ${layer_SOURCES})
    target_link_libraries(awa_${name} PUBLIC ${layer_LINKS} PRIVATE awa_options)
endfunction()
